"""What a process imports before it does anything. Users wait for it at every command and at every start of a member."""

import subprocess
import sys

import pytest

HEAVY = {"aio_pika", "alembic", "croniter", "jsonschema", "pika", "psycopg", "rich", "sqlalchemy", "typer"}


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("rota", set()),
        ("rota.sched.app", set()),
        ("rota.sched.client", set()),
        ("rota.cli.main", {"typer"}),
        ("rota.workers.service", {"pika"}),
        ("rota.sched.scheduler.service", {"pika", "psycopg"}),
    ],
)
def test_a_process_begins_with_the_packages_that_it_needs(module, needed):
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == needed
