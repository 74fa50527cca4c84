"""Imported by each process whose clock can be set. libfaketime 0.9.10 refuses the sleeps of Python 3.11 and later.

Those are until an instant of the monotonic clock, which it takes for one of the clock that it fakes.
"""

import select
import time


def sleep(seconds: float) -> None:
    """As `time.sleep`."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        select.select([], [], [], left)


time.sleep = sleep
