"""What happened to others, tried on Rota: members as real processes, the store's house, and relays in between."""

from __future__ import annotations

import secrets
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.conftest import BOUND, missing
from tests.integration.conftest import COMPOSE, Party, party  # noqa: F401 - a fixture
from tests.store.conftest import PostgresHouse, PostgresTestbed, house  # noqa: F401 - a fixture

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from rota.sched.store.protocols import SyncLink

T = TypeVar("T")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for field_app, here and in the members


def at_once(where: PostgresHouse, number: int, work: Callable[[SyncLink, int], T]) -> list[T]:
    """What `work` gives to so many threads that begin together, each with a connection of its own and its number."""
    start = threading.Barrier(number)

    def one(n: int) -> T:
        with closing(where.store.link("field")) as link:
            link.connection()
            start.wait(BOUND)
            return work(link, n)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


class Field(Party):
    """A party that works for the app of the field cases."""

    def __init__(self, store: str, broker: str, folder: Path) -> None:
        from field_app import TABLES  # noqa: PLC0415 - found by the line above

        super().__init__(store, broker, folder)
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.env |= {
            "ROTA_APP": "field_app:app",
            "PYTHONPATH": f"{HERE}:{COMPOSE}",
            "FIELD_GATES": str(self.gates),
        }
        self.db.execute(TABLES)

    def open(self, gate: str) -> None:
        """Lets the execution go on that waits there."""
        (self.gates / gate).touch()

    def executions(self, key: str) -> int:
        return int(self.value("select count(*) from field_seen where key = %s", key))


@pytest.fixture
def field(store_url: str, broker_url: str, tmp_path: Path) -> Iterator[Field]:
    """A party of the field app in which nobody is yet."""
    with closing(Field(store_url, broker_url, tmp_path)) as found:
        yield found


class PartyOfClocks(Party):
    """Members whose hosts' clocks are wrong by so many seconds."""

    library: Path

    def clock(self, seconds: int) -> dict[str, str]:
        # Only the time of day: sleeping and waiting go by the kernel's own clocks, as on a host that is wrong.
        return {"LD_PRELOAD": str(self.library), "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def start(self, kind: str, *options: str, clock: int = 0) -> subprocess.Popen[bytes]:
        right = self.env
        self.env = right | self.clock(clock)
        try:
            return super().start(kind, *options)
        finally:
            self.env = right


@pytest.fixture
def party_of_clocks(store_url: str, broker_url: str, tmp_path: Path) -> Iterator[PartyOfClocks]:
    """A party in which nobody is yet."""
    from app import prepare  # noqa: PLC0415 - compose is on the path by then
    from servers import Missing  # noqa: PLC0415
    from servers.install import faketime_library  # noqa: PLC0415

    prepare(store_url)
    with closing(PartyOfClocks(store_url, broker_url, tmp_path)) as found:
        try:
            found.library = faketime_library()
        except Missing as error:
            missing(error)
        yield found


@pytest.fixture
def make_role(store_url: str) -> Iterator[Callable[[str], str]]:
    """Makes a user of the store's database with all rights but those that a statement revokes; gives its URL."""
    names: list[str] = []

    def make(revoke: str) -> str:
        name = f"rota_test_{secrets.token_hex(4)}"
        names.append(name)
        with psycopg.connect(store_url, autocommit=True) as admin:
            admin.execute(f"create role {name} login password 'rota'")
            for what in ("schema rota", "all tables in schema rota", "all sequences in schema rota"):
                admin.execute(f"grant all on {what} to {name}")
            admin.execute(f"{revoke} from {name}")
        parts = urlsplit(store_url)
        return urlunsplit(parts._replace(netloc=f"{name}:rota@{parts.netloc.rpartition('@')[2]}"))

    yield make
    with psycopg.connect(store_url, autocommit=True) as admin:
        for name in names:
            admin.execute(f"drop owned by {name}")
            admin.execute(f"drop role {name}")


@pytest.fixture
def house_on() -> Iterator[Callable[[str], PostgresHouse]]:
    """A house on a server of the test's own."""
    with ExitStack() as stack:

        def make(url: str) -> PostgresHouse:
            bed = stack.enter_context(closing(PostgresTestbed(url)))
            bed.store.migrate()
            return stack.enter_context(closing(PostgresHouse(bed)))

        yield make
