"""Everything Rota raises on purpose.

RotaError
├── UsageError            what was asked cannot be understood (exit 2): a value, an expression, an option
├── Refused               it was understood and is not allowed or not there (exit 1)
│   ├── NotFound          no such job, run, queue or handler
│   ├── Conflict          the same idempotency key or name with another request, or a change of an older version
│   └── Superseded        a fenced write by an attempt that was taken away
├── StoreFault            the store answers and refuses a statement for a reason that nobody foresaw (exit 1)
└── Unreachable           the store or the broker cannot be reached, or is not set up (exit 3)
    └── NotMigrated       the store's schema is missing or older than this version of Rota

A handler's own signals (NoRetry, Cancel, Snooze, RetryAfter) are not errors of Rota: see `rota.sched.app`.
Every message says what, with which value, and what to do.
"""

from __future__ import annotations


class RotaError(Exception):
    """Base of all errors of Rota. `code` is the stable word for programs, `exit_code` the command line's."""

    exit_code = 1
    code = "error"


class UsageError(RotaError):
    """A value that cannot be understood."""

    exit_code = 2
    code = "invalid"


class Refused(RotaError):
    """A request that was understood and is not allowed."""

    code = "refused"


class NotFound(Refused):
    """What was named is not there."""

    code = "not_found"


class Conflict(Refused):
    """The same key or name was used before with another request, or a job was changed since its version was read."""

    code = "conflict"


class Superseded(Refused):
    """A fenced write came from an attempt that the ledger has taken away; nothing was written."""

    code = "superseded"


class StoreFault(RotaError):
    """The store refused a statement for a reason of its own: it would refuse it again. Nothing was written."""

    code = "store_fault"


class Unreachable(RotaError):
    """The store or the broker cannot be reached."""

    exit_code = 3
    code = "unreachable"


class NotMigrated(Unreachable):
    """The store answers, but its schema is not the one this version needs."""

    code = "not_migrated"
