"""The wheel holds the package and nothing else."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = {"sched": "rota.sched", "workers": "rota.workers", "cli": "rota.cli"}
FACADE = ROOT / "sched" / "facade"


def packages_on_disk():
    found = {"rota"}
    for top, name in FOLDERS.items():
        for file in (ROOT / top).rglob("*.py"):
            if FACADE not in file.parents:
                found.add(".".join([name, *file.parent.relative_to(ROOT / top).parts]))
    return found


def test_the_listed_packages_are_the_folders_that_hold_modules():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert set(settings["packages"]) == packages_on_disk()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Names in the wheel, built from a copy: a build leaves its folders beside the sources."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = ["pyproject.toml", "LICENSE", "README.md", *FOLDERS]
    present = [name for name in listed if (ROOT / name).exists()]
    subprocess.run(["cp", "-r", *(str(ROOT / name) for name in present), str(source)], check=True)
    (source / "README.md").touch()
    pip = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "-q", "-w", str(out)]
    done = subprocess.run(pip, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = out.glob("*.whl")
    return set(zipfile.ZipFile(file).namelist())


def test_the_wheel_holds_only_the_package_and_its_metadata(wheel):
    assert {name.split("/")[0].split("-")[0] for name in wheel} == {"rota"}


def test_the_wheel_holds_what_is_no_module_too(wheel):
    schemas = {f"rota/sched/schemas/{file.name}" for file in (ROOT / "sched/schemas").glob("*.json")}
    versions = (ROOT / "sched/store/migrations/versions").glob("*.sql")
    statements = {f"rota/sched/store/migrations/versions/{file.name}" for file in versions}
    assert schemas
    assert statements
    assert schemas | statements | {"rota/py.typed"} <= wheel
