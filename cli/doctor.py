"""`rota doctor`: is everything as it should be, and if not, what to do."""

from __future__ import annotations

from typing import Annotated

import typer
from rota.cli import common, output

EXAMPLES = common.examples(
    [
        "rota doctor                 # store, broker, topology, clocks, versions, numbers",
        "rota doctor --json | jq 'select(.state != \"ok\")'",
        "rota doctor --fix-fence     # after the store was restored from a backup, with all members stopped",
    ]
)


def doctor(
    store: common.Store = None,
    broker: common.Broker = None,
    *,
    fix_fence: Annotated[
        bool, typer.Option("--fix-fence", help="Let dispatch numbers and fences go on beyond all that are known.")
    ] = False,
    json: common.Json = False,
) -> None:
    """Check store, broker, topology, clocks, versions. Exit 1 with what to do if something has failed.

    Changes nothing but for the topology that every member declares too, and the numbers with --fix-fence.
    """
    from rota.sched.doctor import examine  # noqa: PLC0415

    checks = examine(common.settings(store=store, broker=broker).need("store"), fix_fence=fix_fence)
    for check in checks:
        if json:
            output.emit(check.to_json())
        else:
            output.say(f"{check.state:8} {check.name}: {check.told}")
            if check.remedy:
                output.say(f"{'':8} -> {check.remedy}")
    raise typer.Exit(1 if any(check.state == "failed" for check in checks) else 0)


def add(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(epilog=EXAMPLES)(doctor)
