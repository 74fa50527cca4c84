"""The store's seam: protocols, values, and the way from a URL to an implementation."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rota.sched.errors import UsageError

if TYPE_CHECKING:
    from rota.sched.store.protocols import Store

ENTRY_POINTS = "rota.stores"
"""Other stores are found under this entry point group by their URL's scheme: a callable of the URL."""


def open_store(url: str) -> Store:
    """The store that `url` names. Connects to nothing yet. UsageError for a scheme nobody answers for."""
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme in {"postgresql", "postgres"}:
        from rota.sched.store.postgres.store import PostgresStore  # noqa: PLC0415 - only who uses it pays for its driver

        return PostgresStore(url)
    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        store: Store = entry.load()(url)
        return store
    raise UsageError(
        f"store URL with scheme {scheme!r}: Rota knows postgresql://USER:PASSWORD@HOST:PORT/DATABASE; "
        "check ROTA_STORE or --store"
    )
