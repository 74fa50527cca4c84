"""What the documentation says of states is what the code has; the README's example is whole."""

import doctest
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


def test_the_page_of_states_draws_every_transition_and_no_other():
    text = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^    (\w+) --> (\w+): (.+)$", text, re.MULTILINE)
    events = {(source, target, event) for source, target, found in drawn for event in found.split(", ")}
    assert events == {(t.source, t.target.removeprefix("history:"), t.event) for t in TRANSITIONS}


def test_the_page_of_states_explains_every_event():
    text = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z, ]+) \|", text, re.MULTILINE)
    assert {t.event for t in TRANSITIONS} <= {event for row in rows for event in row.split(", ")}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_folders_and_files_that_pages_name_exist(page):
    named = re.findall(r"`((?:sched|workers|cli|compose|tests|docs|bench)/[\w./]+)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_rules_of_the_protocol_that_code_refers_to_are_numbered():
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    numbers = re.findall(r"^(\d+)\. ", text.split("## The rules")[1], re.MULTILINE)
    code = "".join(
        path.read_text(encoding="utf-8") for folder in ("sched", "workers") for path in (ROOT / folder).rglob("*.py")
    )
    assert numbers == [str(n) for n in range(1, 12)]
    assert set(re.findall(r"rule (\d+) of docs/protocol", code)) <= set(numbers)


def test_every_example_of_the_page_on_time_holds():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "time.md").read_text(encoding="utf-8"), re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "docs/time.md", "docs/time.md", 0)
    assert len(examples.examples) > 20
    told = []
    doctest.DocTestRunner().run(examples, out=told.append)
    assert "".join(told) == ""
