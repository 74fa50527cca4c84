"""What `import rota` gives is pinned: a name that goes missing breaks users."""

import subprocess
import sys

import rota

NAMES = [
    "App",
    "AsyncClient",
    "Cancel",
    "Client",
    "Conflict",
    "Context",
    "JobRef",
    "NoRetry",
    "NotFound",
    "NotMigrated",
    "Refused",
    "Retry",
    "RetryAfter",
    "RotaError",
    "Snooze",
    "Submission",
    "Superseded",
    "Unreachable",
    "UsageError",
    "__version__",
    "after",
    "at",
    "cron",
    "every",
]


def test_the_public_names_are_exactly_these():
    assert sorted(rota.__all__) == sorted(NAMES)


def test_every_public_name_is_there():
    assert [name for name in NAMES if not hasattr(rota, name)] == []


def test_importing_the_package_shadows_no_module_of_the_standard_library():
    code = "import rota, sched; print(sched.scheduler.__name__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "scheduler"
