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
    folder = Path(root).absolute() / ".venv"
    stamp, wanted = folder / "rota.installed", _fingerprint(root)
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return
    if not (folder / "bin" / "pip").exists():
        _create(folder)
    print("installing Rota and its tools into .venv ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [folder / "bin" / "pip", "install", "-qq", "-e", f"{root}[dev]"],
        cwd=root,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise Missing(
            "Rota's packages are missing: pip failed (see above): check the network and run `make setup` again"
        )
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


def _fingerprint(root: Path) -> str:
    """Changes with pyproject.toml and with the place of the checkout (an environment cannot be moved)."""
    content = (Path(root) / "pyproject.toml").read_bytes()
    return hashlib.sha256(content + str(Path(root).absolute()).encode()).hexdigest()
