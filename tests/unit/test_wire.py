"""Deliveries are taken out of what was read as pika would, wherever the reads cut them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import exceptions, frame, spec
from rota.sched.broker.connection import Wire

BODY = 20
"""The most that goes into one frame here."""


class Read(Wire):
    """What a connection reads, without one: what its receiver got, and the frames that were left to pika."""

    def __init__(self):  # the real one connects
        self._frame_buffer = b""
        self._body_max_length = BODY
        self.frames_received = self.bytes_received = 0
        self.taken, self.frames = [], []
        self.receivers = {(1, b"mine"): self._take}

    def _take(self, tag, redelivered, properties, body):
        self.taken.append((tag, redelivered, properties.message_id, properties.headers, body))

    def _process_frame(self, value):
        self.frames.append(value)


def delivery(n, channel, consumer, body, redelivered):
    properties = spec.BasicProperties(message_id=str(n), headers={"n": n} if n % 2 else None)
    method = spec.Basic.Deliver(consumer, n, redelivered, "rota.jobs", "rota.q.mail")
    parts = [body[at : at + BODY] for at in range(0, len(body), BODY)]
    frames = [frame.Method(channel, method), frame.Header(channel, len(body), properties)]
    return [each.marshal() for each in frames + [frame.Body(channel, part) for part in parts]]


MESSAGE = st.tuples(
    st.sampled_from([1, 1, 1, 2]), st.sampled_from(["mine", "mine", "other"]), st.binary(max_size=50), st.booleans()
)


@given(st.lists(MESSAGE, max_size=8), st.lists(st.integers(0, 2000), max_size=12))
def test_every_delivery_is_taken_once_and_in_order_and_the_rest_is_pikas(messages, cuts):
    read, taken, left, stream = Read(), [], 0, b""
    for n, (channel, consumer, body, redelivered) in enumerate(messages, 1):
        frames = delivery(n, channel, consumer, body, redelivered)
        if channel == 1 and consumer == "mine" and len(body) <= BODY:
            taken.append((n, redelivered, str(n), {"n": n} if n % 2 else None, body))
        else:
            left += len(frames)
        stream += b"".join(frames) + frame.Heartbeat().marshal()
    at = 0
    for cut in [*sorted(cuts), len(stream)]:
        read._on_data_available(stream[at:cut])
        at = max(at, cut)
    assert read.taken == taken
    assert len(read.frames) == left + len(messages)
    assert read.bytes_received == len(stream)


def test_a_frame_without_its_end_is_refused():
    read, frames = Read(), delivery(1, 1, "mine", b"x", redelivered=False)
    with pytest.raises(exceptions.InvalidFrameError):
        read._on_data_available(b"".join([*frames[:-1], frames[-1][:-1] + b"!"]) + b"more")
    assert read.taken == []


def test_the_version_of_a_server_that_refuses_ours_is_left_to_pika():
    read = Read()
    read._on_data_available(b"AMQP\x00")
    read._on_data_available(b"\x00\x09\x01")
    (header,) = read.frames
    assert header.frame_type == -1
