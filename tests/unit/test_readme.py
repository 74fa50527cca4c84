"""Every Python example of the README compiles, the first job is imported, and its commands and targets exist."""

import importlib.util
import re
from pathlib import Path

import pytest
import typer.main
from rota.cli.main import app as command_line

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_python_example_compiles(number):
    compile(EXAMPLES[number], f"example {number}", "exec")


def test_the_first_job_is_imported_without_a_store_or_an_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("ROTA_STORE", raising=False)
    path = tmp_path / "billing.py"
    path.write_text(EXAMPLES[0], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("billing", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.app.name == "billing"
    assert list(module.app.handlers) == ["send_invoice"]


def test_every_command_in_the_readme_exists():
    known = set(typer.main.get_command(command_line).commands)
    shown = set(re.findall(r"^ {4}rota ([a-z]+)", README, re.MULTILINE))
    assert shown
    assert shown <= known


def test_every_make_target_in_the_readme_exists():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake (?:-s )?([a-z0-9-]+)", README)) <= targets
