"""Real servers for the tests, and coroutine tests.

`store_url` and `broker_url` are a clean, migrated database and a clean vhost for one test. `make_database` and
`make_vhost` make more of them. `node` is a broker to be stopped, crashed, frozen and starved, `node_url` a clean vhost
there; `make_postgres` and `make_rabbitmq` start servers that belong to one test. Servers are found or started as docs/development.md says; tests/unit needs none.
"""

import asyncio
import contextlib
import inspect
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "compose"))

from servers import Missing, NotReady, PgBouncer, Postgres, RabbitMQ, Services, process  # noqa: E402 - found by the line above
from servers.databases import create_database, drop_database  # noqa: E402
from servers.management import Management  # noqa: E402
from servers.rabbitmq4 import RabbitMQ4  # noqa: E402
from servers.services import Urls  # noqa: E402

BOUND = 120.0
"""Seconds: what tests wait for and takes longer hangs. It promises nothing: a busy machine takes its time."""
ASYNC_BOUND = 300.0  # seconds: a coroutine test that takes longer hangs


# An example that takes long shows that the machine does.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
# For runs that only want to know whether there is a failure: `--hypothesis-profile=unshrunk`.
settings.register_profile(
    "unshrunk", settings.get_profile("steady"), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)


def pytest_configure() -> None:
    # A terminated run tears its fixtures down like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests, each in a loop of its own and for a bounded time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in names}

    async def bounded() -> None:
        async with asyncio.timeout(ASYNC_BOUND):
            await pyfuncitem.obj(**arguments)

    asyncio.run(bounded())
    return True


def missing(error: Exception) -> None:
    """A server that cannot be had fails in CI and under make, and skips elsewhere."""
    if os.environ.get("CI") or os.environ.get("MAKELEVEL"):
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


@pytest.fixture(scope="session")
def services() -> Iterator[Urls]:
    """Where the servers are; started if nobody did, and stopped again then."""
    with contextlib.ExitStack() as stack:
        try:
            urls = stack.enter_context(Services(ROOT).use())
        except (Missing, NotReady) as error:
            missing(error)
        yield urls


# Postgres


class MakeDatabase(Protocol):
    def __call__(self, *, migrated: bool = True) -> str: ...


@pytest.fixture(scope="session")
def database_prefix(services: Urls) -> Iterator[str]:
    """Begins the names of this session's databases; what dead sessions left behind is dropped."""
    prefix = f"rota_test_{secrets.token_hex(4)}"
    with psycopg.connect(services.store, autocommit=True, application_name=prefix) as connection:
        for (name,) in connection.execute(
            "SELECT d.datname FROM pg_database d WHERE d.datname ~ '^rota_test_[0-9a-f]{8}_' AND NOT EXISTS"
            " (SELECT FROM pg_stat_activity a WHERE a.application_name = substr(d.datname::text, 1, 18))"
        ).fetchall():
            drop_database(services.store, name)
        yield prefix


@pytest.fixture(scope="session")
def template_database(services: Urls, database_prefix: str) -> Iterator[str]:
    """The name of a migrated database that the others are copied from."""
    from rota.sched.store import open_store  # noqa: PLC0415 - tests that need no store can run without it

    name = f"{database_prefix}_template"
    url = create_database(services.store, name)
    with contextlib.closing(open_store(url)) as store:
        store.migrate()
    yield name
    drop_database(services.store, name)


@pytest.fixture(scope="session")
def _database_factory(
    services: Urls, database_prefix: str, request: pytest.FixtureRequest
) -> Callable[[bool], tuple[str, str]]:
    def create(migrated: bool) -> tuple[str, str]:  # noqa: FBT001 - internal to this file
        name = f"{database_prefix}_{secrets.token_hex(4)}"
        template = request.getfixturevalue("template_database") if migrated else "template1"
        return name, create_database(services.store, name, template)

    return create


def make_databases(services: Urls, create: Callable[[bool], tuple[str, str]]) -> Iterator[MakeDatabase]:
    """What the fixtures of databases are made of."""
    names: list[str] = []

    def make(*, migrated: bool = True) -> str:
        name, url = create(migrated)
        names.append(name)
        return url

    yield make
    for name in names:
        drop_database(services.store, name)


@pytest.fixture
def make_database(services: Urls, _database_factory: Callable[[bool], tuple[str, str]]) -> Iterator[MakeDatabase]:
    """Makes databases that are dropped after the test; call it for the URL of a clean one, migrated or empty."""
    yield from make_databases(services, _database_factory)


@pytest.fixture(scope="module")
def module_store_url(services: Urls, _database_factory: Callable[[bool], tuple[str, str]]) -> Iterator[str]:
    """The URL of a migrated database for all tests of a module that change nothing in it."""
    for make in make_databases(services, _database_factory):
        yield make()


@pytest.fixture
def store_url(make_database: MakeDatabase) -> str:
    """The URL of a clean, migrated database."""
    return make_database()


@pytest.fixture
def empty_store_url(make_database: MakeDatabase) -> str:
    """The URL of an empty database."""
    return make_database(migrated=False)


@pytest.fixture
def database(store_url: str) -> str:
    """The same as `store_url`, by another name."""
    return store_url


# RabbitMQ


@pytest.fixture(scope="session")
def management(services: Urls) -> Management:
    """RabbitMQ's HTTP API."""
    found = Management(services.broker, services.management)
    if not process.wait_until(found.answers, BOUND, every=0.5):
        missing(Missing("RabbitMQ's management API does not answer: set ROTA_TEST_BROKER_MANAGEMENT=http://..."))
    return found


class Vhosts:
    """Makes vhosts, and deletes those of tests that are over when nobody can be at work in them any more.

    Declares go on for a moment in a channel whose client was killed. A node of 3.10 whose queue is deleted while it is declared loses
    the supervisor of all dead-letter workers, and nobody can declare such a queue on it until it is restarted.
    """

    REST = 3.0

    def __init__(self, management: Management) -> None:
        self._management = management
        self._over: deque[tuple[float, str]] = deque()

    def make(self) -> Iterator[Callable[[], str]]:
        """What the fixtures of vhosts are made of."""
        names: list[str] = []

        def make() -> str:
            names.append(f"rota_test_{secrets.token_hex(6)}")
            return self._management.create_vhost(names[-1])

        yield make
        self._over += [(time.monotonic(), name) for name in names]
        while self._over and self._over[0][0] < time.monotonic() - self.REST:
            self._management.delete_vhost(self._over.popleft()[1])

    def close(self) -> None:
        """Deletes them all."""
        if self._over:
            time.sleep(max(0.0, self._over[-1][0] + self.REST - time.monotonic()))
        for _, name in self._over:
            self._management.delete_vhost(name)


@pytest.fixture(scope="session")
def vhosts(management: Management) -> Iterator[Vhosts]:
    """The vhosts of all tests of this process."""
    with closing(Vhosts(management)) as found:
        yield found


@pytest.fixture
def make_vhost(vhosts: Vhosts) -> Iterator[Callable[[], str]]:
    """Makes vhosts that are deleted after the test; call it for the URL of an empty one."""
    yield from vhosts.make()


@pytest.fixture(scope="module")
def module_broker_url(vhosts: Vhosts) -> Iterator[str]:
    """The URL of a vhost for all tests of a module that change nothing in it."""
    for make in vhosts.make():
        yield make()


@pytest.fixture
def broker_url(make_vhost: Callable[[], str]) -> str:
    """The URL of an empty vhost."""
    return make_vhost()


# Servers of one test's own


@pytest.fixture
def make_postgres(tmp_path: Path) -> Iterator[Callable[..., Postgres]]:
    """Starts PostgreSQL servers that belong to this test; takes the arguments of `Postgres` but the folder."""
    yield from own(Postgres, tmp_path)


@pytest.fixture
def make_rabbitmq(services: Urls, tmp_path: Path) -> Iterator[Callable[..., RabbitMQ]]:
    """Starts RabbitMQ nodes that belong to this test; takes the arguments of `RabbitMQ` but the folder."""
    yield from own_rabbitmq(services, tmp_path)


def own_rabbitmq(services: Urls, folder: Path) -> Iterator[Callable[..., RabbitMQ]]:
    """The same for fixtures of another scope. Under `make test-rabbitmq4` they are nodes of 4.x, too."""
    shared = Services(ROOT).rabbitmq4
    if shared.running and services.broker == shared.url:
        yield from own(lambda path, **options: RabbitMQ4(shared.root, path.name, **options), folder)
    else:
        yield from own(RabbitMQ, folder)


@pytest.fixture(scope="session")
def _node(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with contextlib.contextmanager(own_rabbitmq)(services, tmp_path_factory.mktemp("node")) as make:
        yield make()


@pytest.fixture(scope="session")
def _node_vhosts(_node: RabbitMQ) -> Vhosts:
    return Vhosts(Management(_node.url, _node.management_url))


@pytest.fixture
def node_url(_node_vhosts: Vhosts) -> Iterator[str]:
    """The URL of an empty vhost on `node`."""
    for make in _node_vhosts.make():
        yield make()


@pytest.fixture
def node(_node: RabbitMQ, node_url: str) -> Iterator[RabbitMQ]:
    """A RabbitMQ node to be stopped, crashed and frozen. It belongs to one test at a time and runs again afterwards."""
    yield _node
    _node.thaw()
    _node.start()


# What sets an alarm of a node, and what ends it.
ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0.0000001"), ("set_vm_memory_high_watermark", "absolute", "1GB")),
    "disk": (("set_disk_free_limit", "1000000000000000"), ("set_disk_free_limit", "50MB")),
}


@contextlib.contextmanager
def low_on(what: str, node: RabbitMQ) -> Iterator[None]:
    """The node's alarm of "memory" or "disk" is on: it takes no publishes."""
    low, enough = ALARMS[what]
    node.ctl(*low)
    try:
        yield
    finally:
        node.ctl(*enough)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests on `node` follow one another in one process of xdist: a node takes as long to start as they run."""
    for item in items:
        if "node" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("node"))


@pytest.fixture
def make_pgbouncer(tmp_path: Path) -> Iterator[Callable[..., PgBouncer]]:
    """Starts poolers in transaction mode that belong to this test: `make_pgbouncer(store=URL)`."""
    yield from own(PgBouncer, tmp_path)


def own(kind: Callable[..., Postgres | RabbitMQ | PgBouncer], folder: Path) -> Iterator[Callable[..., Any]]:
    """What the fixtures above are made of, for fixtures of another scope."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Postgres | RabbitMQ | PgBouncer:
            server = kind(folder / secrets.token_hex(4), **options)
            stack.callback(server.destroy)
            try:
                server.start()
            except Missing as error:
                missing(error)
            return server

        yield start
