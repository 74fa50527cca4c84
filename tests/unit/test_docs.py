"""What the documentation says of states is what the code has; the README's example is whole."""

import re
from pathlib import Path

import pytest
from rota.sched.model import TRANSITIONS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def test_the_diagram_of_states_has_every_transition_and_no_other():
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^  (\S+) --> (\S+): (\w+)$", text, re.MULTILINE)
    assert drawn == [(t.source.replace(":", "_"), t.target.replace(":", "_"), t.event) for t in TRANSITIONS]


def test_the_first_job_of_the_readme_is_an_app_with_a_handler():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    scope: dict = {"__name__": "billing"}
    exec(compile(code[1], "billing.py", "exec"), scope)
    call = scope["send_invoice"].call(invoice_id=7)
    assert (call.handler, call.queue) == ("send_invoice", "mail")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
