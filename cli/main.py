"""The application `rota`: its commands and its exit codes.

0 done, 1 refused or not found, 2 usage, 3 store or broker not reachable, 130 interrupted, 141 nobody reads the output
any more. Commands import what they need when they run, so that `rota --help` is quick.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rota.cli import changes, crontab, dead, doctor, export, jobs, load, members, preview, queries
from rota.sched.errors import RotaError
from typer.core import TyperGroup
from typer.main import get_command_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.models import CommandInfo


class Commands(TyperGroup):
    """The group of all commands: what they raise becomes a line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Runs one command."""
        with exit_codes():
            answer = super().invoke(ctx)
            sys.stdout.flush()
            return answer


@contextmanager
def exit_codes() -> Iterator[None]:
    """Makes of what a command raises its exit code. With --debug errors keep their traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except RotaError as error:
        _fail(error, str(error), error.exit_code)
    except Exception as error:
        if type(error).__module__.startswith(("typer", "click")):
            raise
        _fail(error, f"unexpected {type(error).__name__}: {error}; `rota --debug ...` shows where", 1)


def _fail(error: Exception, message: str, code: int) -> None:
    if os.environ.get("ROTA_DEBUG"):
        raise error
    print(f"rota: {message}", file=sys.stderr)  # noqa: T201 - the command line speaks here
    sys.exit(code)


app = typer.Typer(
    name="rota",
    cls=Commands,
    help="Jobs at a time, on a schedule or now, on Postgres and RabbitMQ: near their time, once in effect.",
    epilog="Settings come from ROTA_STORE, ROTA_BROKER, ROTA_APP and other ROTA_* variables: see `rota config`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it so
    if wanted:
        from rota.sched.version import __version__  # noqa: PLC0415

        print(__version__)  # noqa: T201 - the command line speaks here
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", envvar="ROTA_DEBUG", help="Show tracebacks.")] = False,
) -> None:
    """Options that stand before the command."""
    if debug:
        os.environ["ROTA_DEBUG"] = "1"


for module in (members, jobs, changes, dead, queries, preview, load, crontab, export, doctor):
    module.add(app)


def main() -> None:
    """The console script."""
    _keep_only(next((word for word in sys.argv[1:] if not word.startswith("-")), ""))
    with exit_codes():
        app()


def _keep_only(name: str) -> None:
    """Typer builds all commands, of which one is asked for: the others take longer to build than many take to run."""
    wanted = [command for command in app.registered_commands if _name(command) == name]
    if wanted:
        app.registered_commands, app.registered_groups = wanted, []


def _name(command: CommandInfo) -> str:
    return command.name or get_command_name(getattr(command.callback, "__name__", ""))
