#!/usr/bin/env python3
"""Sets up and runs the servers that demo, tests and bench need. See docs/development.md.

    services.py setup            the virtual environment and the servers' programs
    services.py up [--json]      start the servers, print where they are, leave them running
    services.py down             stop them
    services.py status [--json]  what runs
    services.py run [--rabbitmq4] -- COMMAND...   start what does not run, run the command, stop it again
    services.py rabbitmq4 up|down                 a RabbitMQ 4.x node beside Debian's older one
    services.py clean            stop and remove everything

Exit 3 and one line on stderr when something cannot be had. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "compose"))

from servers import Services, foreground, install, signals, venv  # noqa: E402 - the line above makes it importable
from servers.errors import ServerError  # noqa: E402


def setup(services: Services, _options: argparse.Namespace) -> int:
    with services.locked():
        venv.ensure(ROOT)
        _install(services)
    return 0


def _install(services: Services) -> None:
    store, broker = os.environ.get("ROTA_TEST_STORE"), os.environ.get("ROTA_TEST_BROKER")
    if (store and broker) or services.containers.usable():
        return
    if not store:
        install.postgres_bin()
    if not broker:
        install.rabbitmq_bin()


def up(services: Services, options: argparse.Namespace) -> int:
    _print_urls(services.up().environment(), as_json=options.json)
    return 0


def down(services: Services, _options: argparse.Namespace) -> int:
    if not services.down():
        print("the servers are in use and will stop with their last user", file=sys.stderr)
    return 0


def clean(services: Services, _options: argparse.Namespace) -> int:
    services.clean()
    return 0


def status(services: Services, options: argparse.Namespace) -> int:
    found = services.status()
    if options.json:
        print(json.dumps(found))
        return 0
    for name, facts in found.items():
        print(name, *(f"{key}={value}" for key, value in facts.items()))
    if not found:
        print("no servers run")
    return 0


def run(services: Services, options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    with services.use(rabbitmq4=options.rabbitmq4) as urls:
        return foreground.run(command, {**os.environ, **urls.environment()})


def rabbitmq4(services: Services, options: argparse.Namespace) -> int:
    if options.verb == "down":
        services.rabbitmq4.stop()
        return 0
    services.rabbitmq4.start()
    urls = {
        "ROTA_TEST_BROKER": services.rabbitmq4.url,
        "ROTA_TEST_BROKER_MANAGEMENT": services.rabbitmq4.management_url,
    }
    _print_urls(urls, as_json=options.json)
    return 0


def _print_urls(urls: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(urls))
        return
    for key, value in urls.items():
        print(f"export {key}={value}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="name", required=True)
    for action in (setup, up, down, status, clean, run, rabbitmq4):
        verb = verbs.add_parser(action.__name__)
        verb.set_defaults(action=action)
        verb.add_argument("--json", action="store_true")
    verbs.choices["run"].add_argument("--rabbitmq4", action="store_true")
    verbs.choices["run"].add_argument("command", nargs=argparse.REMAINDER)
    verbs.choices["rabbitmq4"].add_argument("verb", choices=("up", "down"))
    return parser


def main() -> int:
    options = _parser().parse_args()
    try:
        with signals.raised():
            status: int = options.action(Services(ROOT), options)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 3
    except signals.Interrupted as interrupted:
        return interrupted.status
    return status


if __name__ == "__main__":
    sys.exit(main())
