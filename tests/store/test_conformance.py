"""The conformance suite on Postgres; its fixture `house` is in conftest.py."""

from rota.sched.store.conformance import *  # noqa: F403
