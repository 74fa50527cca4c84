"""The virtual environment of a checkout."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from servers.errors import Missing
from servers.install import debian

OLDEST = (3, 11)


def ensure(root: Path) -> None:
    """Make `.venv` with the package and its tools, unless it is as pyproject.toml wants it. Raises `Missing`."""
    what = f"{root}[dev]"
    _install("Rota and its tools", Path(root).absolute() / ".venv", ["-e", what], Path(root) / "pyproject.toml", root)


def ensure_tools(folder: Path, requirements: Path) -> None:
    """Make the environment `folder` with what the file lists, unless it is so already. Raises `Missing`."""
    _install(requirements.name, Path(folder).absolute(), ["-r", str(requirements)], requirements, folder)


def _install(what: str, folder: Path, options: list[str], source: Path, place: Path) -> None:
    stamp, wanted = folder / "rota.installed", _fingerprint(source, place)
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return
    if not (folder / "bin" / "pip").exists():
        _create(folder)
    print(f"installing {what} into {folder.name} ...", file=sys.stderr, flush=True)
    command = [str(folder / "bin" / "pip"), "install", "-qq", *options]
    if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode:
        raise Missing(f"{what}: pip failed (see above): check the network and run this again")
    stamp.write_text(wanted, encoding="ascii")


def _create(folder: Path) -> None:
    if sys.version_info < OLDEST:
        raise Missing(
            f"Python 3.11 is missing: this is {sys.version.split()[0]}: name a newer one with `make PYTHON=...`"
        )
    try:
        import ensurepip  # noqa: F401, PLC0415 - Debian ships it apart, in python3-venv
    except ImportError:
        debian("Python's venv", ["python3-venv"], "")
    shutil.rmtree(folder, ignore_errors=True)
    if subprocess.run([sys.executable, "-m", "venv", folder], check=False).returncode:
        raise Missing(f"the virtual environment is missing: `{sys.executable} -m venv {folder}` failed (see above)")


def _fingerprint(source: Path, place: Path) -> str:
    """Changes with the file that says what is wanted and with the place (an environment cannot be moved)."""
    return hashlib.sha256(Path(source).read_bytes() + str(Path(place).absolute()).encode()).hexdigest()
