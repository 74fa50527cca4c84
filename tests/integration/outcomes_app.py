"""Handlers that end in every way there is."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from rota import App, Cancel, Context, NoRetry, Retry, RetryAfter, Snooze

app = App("outcomes")
twice = Retry(attempts=2, base=0.2)
once = Retry(attempts=1)


@app.handler
def returns(ctx: Context) -> dict[str, int]:
    """Succeeds with a result."""
    return {"attempt": ctx.attempt}


@app.handler(retry=twice)
def raises() -> None:
    """Fails, always."""
    raise RuntimeError("no luck at amqp://me:hush@broker/")


@app.handler(retry=twice)
def recovers(ctx: Context) -> int:
    """Fails, then not."""
    if ctx.attempt == 1:
        raise RuntimeError("not yet")
    return ctx.attempt


@app.handler(retry=twice)
def gives_up() -> None:
    """Knows that it will never work."""
    raise NoRetry("the customer is gone")


@app.handler(retry=Retry(attempts=5, base=0.2, never=LookupError))
def is_choosy() -> None:
    """Fails with what its policy does not retry."""
    raise KeyError("city")


@app.handler(retry=Retry(attempts=99, base=0.4, cap=0.4, retry_for=1))
def has_a_window() -> None:
    """Fails until it is too late."""
    raise RuntimeError("still not")


@app.handler
def is_not_needed() -> None:
    """Ends itself."""
    raise Cancel("there is nothing to do")


@app.handler(retry=once)
def snoozes(ctx: Context) -> int:
    """Not now; then it is done, in the first attempt."""
    if ctx.last_checkpoint is None:
        ctx.checkpoint({"seen": True})
        raise Snooze(1)
    return ctx.attempt


@app.handler(retry=twice)
def asks_for_a_pause(ctx: Context) -> int:
    """Says itself how long to wait."""
    if ctx.attempt == 1:
        raise RetryAfter(1)
    return ctx.attempt


@app.handler(timeout=0.3, retry=once)
async def hangs() -> None:
    """A coroutine that waits for what never comes."""
    await asyncio.Event().wait()


@app.handler(timeout=0.3, retry=once)
def hangs_in_a_thread() -> None:
    """A thread that does not look at its ctx."""
    time.sleep(20)


@app.handler(timeout=0.3, retry=once)
def notices(ctx: Context) -> None:
    """A thread that does."""
    while not ctx.cancelled:
        time.sleep(0.02)
    raise TimeoutError("noticed in time")


@app.handler
async def waits(ctx: Context, page: int = 3) -> None:
    """A coroutine that somebody cancels."""
    ctx.progress(0.5, "half-way")
    await ctx.acheckpoint({"page": page})
    await asyncio.Event().wait()


@app.handler
def does_not_listen() -> None:
    """A thread that somebody cancels in vain."""
    time.sleep(600)


@app.handler
def waits_in_a_thread(ctx: Context) -> None:
    """A thread that somebody cancels."""
    while not ctx.cancelled:
        time.sleep(0.02)
    raise RuntimeError("stopped in the middle")


@app.handler(retry=Retry(attempts=2, base=30, cap=30))
def will_be_tried_again() -> None:
    """Fails and is waiting for its second attempt when something happens to it."""
    raise RuntimeError("later")


@app.handler
def kills_its_worker() -> None:
    """Poison."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.handler
def needs_a_lost_workers_checkpoint(ctx: Context) -> int:
    """The first execution keeps how far it is and kills its worker; the second goes on from there."""
    if ctx.last_checkpoint is None:
        ctx.checkpoint(41)
        os.kill(os.getpid(), signal.SIGKILL)
    return int(ctx.last_checkpoint) + 1


@app.handler(isolate="process", timeout=1, retry=once)
def hangs_in_a_process() -> None:
    """A process that takes too long."""
    time.sleep(600)


@app.handler(isolate="process", retry=once)
def dies_in_its_process() -> None:
    """Poison only for itself."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.handler(isolate="process")
def waits_in_a_process(ctx: Context) -> None:
    """A process that somebody cancels."""
    ctx.progress(0.5, "half-way")
    time.sleep(600)


if "OUTCOMES_DEPLOYED" in os.environ:

    @app.handler
    def comes_with_the_next_deploy() -> None:
        """For workers that have been there before it."""


@app.handler(queue="late")
def comes_late() -> None:
    """For a queue that has no worker at first."""
