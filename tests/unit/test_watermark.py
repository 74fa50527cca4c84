"""The number up to which everything is confirmed."""

import sys
import threading

from hypothesis import given
from hypothesis import strategies as st
from rota.sched.scheduler.watermark import Watermark


@given(st.sets(st.integers(1, 1000), max_size=40), st.randoms())
def test_everything_up_to_the_mark_is_confirmed_and_the_mark_never_falls(numbers, random):
    mark, open_, before = Watermark(), set(), 0
    rest = sorted(numbers)
    while rest or open_:
        if rest and (not open_ or random.random() < 0.5):
            count = random.randint(1, len(rest))
            mark.add(rest[:count])
            open_ |= set(rest[:count])
            rest = rest[count:]
        else:
            number = random.choice(sorted(open_))
            mark.confirm(number)
            open_.remove(number)
        assert all(number > mark.value for number in open_)
        assert mark.value >= before
        before = mark.value
    assert mark.value == max(numbers, default=0)


def test_the_mark_stands_below_the_oldest_that_is_not_confirmed():
    mark = Watermark()
    mark.add([5, 9, 12])
    mark.confirm(9)
    assert mark.value == 4
    mark.confirm(5)
    assert mark.value == 11
    mark.confirm(5)
    mark.confirm(12)
    assert mark.value == 12


def test_the_mark_can_be_read_while_dispatches_come_and_go():
    """The heartbeat's thread reads it: a number that is gone by then must neither stop it nor be passed over."""
    mark, read, over = Watermark(), [], threading.Event()

    def look():
        while not over.is_set():
            read.append(mark.value)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for number in range(1, 60_000, 2):
            mark.add([number, number + 1])
            mark.confirm(number)
            mark.confirm(number + 1)
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert mark.value == 60_000
    assert read == sorted(read)
