"""Breaks the product in known ways, one after the other, and runs the tests that must notice.

run.py [NAME...]   all mutations of mutations.py, or the named ones

The package is laid out as an installation would, as links, in a temporary folder that comes first on the path; for each
mutation a changed copy takes the place of a link. The checkout itself is not touched. Processes that tests start run
the installed package, so only tests that stay in their own process can notice. Exits with 1 if a mutation survives, if
its text no longer applies, or if its tests fail without it. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mutations import MUTATIONS, Edit, Mutation

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PYTEST = Path(sys.executable).parent / "pytest"
OPTIONS = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-profile=unshrunk"]
BOUND = 300.0
"""Seconds for one mutation's tests: one that hangs is noticed too."""
PASSED, FAILED, MEANINGLESS = 0, 1, -1
NONSENSE = ("SyntaxError", "UndefinedColumn", "UndefinedTable", "AmbiguousColumn", "ImportError", "NameError")
"""What a test says of a mutation that is no program any more: that it was noticed proves nothing."""


def main(names: list[str]) -> int:
    """Runs them; says how each went."""
    chosen = [m for m in MUTATIONS if not names or m.name in names]
    unknown = set(names) - {m.name for m in chosen}
    if unknown:
        print(f"no such mutation: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    began = time.monotonic()
    found: dict[str, list[str]] = {"caught": [], "survived": [], "broken": []}
    with tempfile.TemporaryDirectory(prefix="rota-mutants-") as folder:
        view = Path(folder)
        subprocess.run([sys.executable, ROOT / ".ci" / "package_view.py", view], check=True)
        tests = sorted({test for m in chosen for test in m.tests})
        if run(view, tests) != PASSED:
            print("the tests fail without any mutation", file=sys.stderr)
            return 1
        for n, mutation in enumerate(chosen, 1):
            started = time.monotonic()
            verdict = tried(view, mutation)
            found[verdict].append(mutation.name)
            shown = verdict if verdict == "caught" else verdict.upper()
            print(f"{n:2}/{len(chosen)} {shown:8} {mutation.name}, {time.monotonic() - started:.1f} s", flush=True)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**found, "caught": len(found["caught"]), "mutations": len(chosen), "seconds": seconds}))
    return 1 if found["survived"] or found["broken"] else 0


def tried(view: Path, mutation: Mutation) -> str:
    """caught, survived or broken: its text or its tests are not there."""
    for edit in mutation.edits:
        times = (ROOT / edit.file).read_text(encoding="utf-8").count(edit.old)
        if times != 1:
            print(f"   {edit.old!r} is {times} times in {edit.file}", file=sys.stderr)
            return "broken"
    with applied(view, mutation.edits):
        code = run(view, list(mutation.tests))
    return {PASSED: "survived", FAILED: "caught"}.get(code, "broken")


@contextmanager
def applied(view: Path, edits: tuple[Edit, ...]) -> Iterator[None]:
    """The view with changed copies in the place of links."""
    files = {edit.file: (ROOT / edit.file).read_text(encoding="utf-8") for edit in edits}
    for edit in edits:
        files[edit.file] = files[edit.file].replace(edit.old, edit.new)
    for name, text in files.items():
        (view / "rota" / name).unlink()
        (view / "rota" / name).write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        for name in files:
            (view / "rota" / name).unlink()
            (view / "rota" / name).symlink_to(ROOT / name)


def run(view: Path, tests: list[str]) -> int:
    """pytest's exit code with the package in `view`, or MEANINGLESS."""
    env = {**os.environ, "PYTHONPATH": str(view), "PYTHONDONTWRITEBYTECODE": "1", "MAKELEVEL": "1"}
    try:
        done = subprocess.run(
            [PYTEST, *OPTIONS, *tests], cwd=ROOT, env=env, timeout=BOUND, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return FAILED
    code = MEANINGLESS if any(word in done.stdout for word in NONSENSE) else done.returncode
    if code not in {PASSED, FAILED}:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
