"""The application `rota`: its commands and its exit codes.

0 done, 1 refused or not found, 2 usage, 3 store or broker not reachable, 130 interrupted. Commands import what they
need when they run, so that `rota --help` is quick.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from rota.cli import jobs, members, queries
from rota.sched.errors import RotaError

app = typer.Typer(
    name="rota",
    help="Jobs at a time, on a schedule or now, on Postgres and RabbitMQ: near their time, once in effect.",
    epilog="Settings come from ROTA_STORE, ROTA_BROKER, ROTA_APP and other ROTA_* variables: see `rota config`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback()
def options(
    *,
    debug: Annotated[bool, typer.Option("--debug", envvar="ROTA_DEBUG", help="Show tracebacks.")] = False,
) -> None:
    """Options that stand before the command."""
    if debug:
        os.environ["ROTA_DEBUG"] = "1"


@app.command()
def version() -> None:
    """Print Rota's version."""
    from rota.sched.version import VERSION  # noqa: PLC0415

    print(VERSION)  # noqa: T201


for module in (members, jobs, queries):
    module.add(app)


def main() -> None:
    """The console script."""
    try:
        app()
    except RotaError as error:
        _fail(error, error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _fail(error: RotaError, code: int) -> None:
    if os.environ.get("ROTA_DEBUG"):
        raise error
    print(f"rota: {error}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
