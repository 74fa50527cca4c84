"""The compose file, as far as it can be checked without an engine."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "compose" / "compose.yaml"


def has_compose() -> bool:
    return (
        bool(shutil.which("docker"))
        and not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(not has_compose(), reason="docker's client has no compose here")
def test_docker_compose_accepts_the_file():
    done = subprocess.run(
        ["docker", "compose", "-f", FILE, "config", "-q"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_password_and_port_can_be_set_from_outside():
    text = FILE.read_text(encoding="utf-8")
    passwords = re.findall(r"(?:PASSWORD|_PASS): (.*)", text)
    assert passwords
    assert all(value.startswith("${ROTA_") for value in passwords)
    published = re.findall(r'"(127\.0\.0\.1:[^"]+|\d+:\d+)"', text)
    assert published
    assert all(re.match(r"127\.0\.0\.1:\$\{ROTA_\w+:-0\}:\d+$", port) for port in published)


def test_every_service_that_stays_up_has_a_health_check():
    text = FILE.read_text(encoding="utf-8")
    services = text[text.index("\nservices:") : text.index("\nvolumes:")]
    blocks = re.split(r"\n  (?=[a-z0-9-]+:)", services)[1:]
    for block in blocks:
        inherited = "<<: *member" in block or block.split(":")[1].strip() in {"*scheduler", "*worker"}
        assert inherited or "healthcheck:" in block, block
    assert len(blocks) == 7


def test_the_build_context_lets_through_exactly_what_the_dockerfile_copies():
    dockerfile = (ROOT / "compose" / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
