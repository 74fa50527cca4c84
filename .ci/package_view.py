# ruff: noqa: INP001 - a script
"""Lays out the packages as an installation would, as links: type checkers do not follow the editable install.

package_view.py FOLDER
"""

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(target: Path) -> None:
    """Make `target` afresh: one folder for each listed package, one link for each of its files."""
    shutil.rmtree(target, ignore_errors=True)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    for package in settings["packages"]:
        folder = target / package.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        for source in source_of(package, settings["package-dir"]).iterdir():
            if source.is_file():
                (folder / source.name).symlink_to(source)


def source_of(package: str, folders: dict[str, str]) -> Path:
    """The folder of a package: its own entry in `package-dir`, or its parent's and its name."""
    if package in folders:
        return ROOT / folders[package]
    parent, _, name = package.rpartition(".")
    return source_of(parent, folders) / name


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
