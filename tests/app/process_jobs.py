"""Handlers of the process tests: they hang, use memory, crash and leave processes behind.

The database is that of `HOLDFAST_URL` at import: in the test, and again in every child.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import App, Backoff, Cancel, Context, Process, Reject, Retry, RetryLater, SyncContext, outgoing_headers

app = App(os.environ.get("HOLDFAST_URL", "sqlite:///:memory:"), name="process_jobs", enqueued_by="tester")

BROKEN_IMPORT = "HOLDFAST_TEST_BROKEN"
if os.environ.get(BROKEN_IMPORT) == str(os.getppid()):  # only in a child of the test
    raise ImportError("this module cannot be imported in a child")


@app.job(process=True)
def where() -> list[int]:
    return [os.getpid(), os.getpgrp(), os.getsid(0), os.getppid()]


@app.job(process=True)
def traced(ctx: SyncContext) -> dict[str, str]:
    return outgoing_headers()


@app.job(process=Process(recycle=2))
def seldom() -> int:
    return os.getpid()


@app.job(process=True)
async def echo(ctx: Context, value: Any) -> Any:
    await asyncio.sleep(0)
    return {"value": value, "kind": ctx.kind, "attempt": ctx.attempt}


@app.job(process=True)
def keeps(ctx: SyncContext) -> Any:
    seen = ctx.checkpoint.load(default=0)
    ctx.checkpoint.save(seen + 1)
    child = in_here.enqueue()
    if seen == 0:
        raise ValueError("saved, and failed")
    return [seen, child.id]


@app.job()
def in_here() -> None: ...


@app.job(process=True)
def raises(text: str) -> None:
    print("to stdout", flush=True)
    logging.getLogger("shop").warning("in the log")
    raise LookupError(text)


@app.job(process=True)
def leaves(code: int) -> None:
    sys.exit(code)


@app.job(process=True, timeout=1.5)
def hangs(marks: str) -> None:
    """Hang with a child that ignores SIGTERM."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    started = subprocess.Popen([sys.executable, "-c", code])
    Path(marks).write_text(f"{os.getpid()} {started.pid}")
    time.sleep(600)


@app.job(process=True)
def waits(marks: str) -> None:
    hangs.function(marks)


@app.job(process=True)
def holds_the_interpreter(marks: str) -> None:
    """Run a regular expression that practically never ends and does not release the interpreter."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(marks).write_text(f"{os.getpid()} {started.pid}")
    re.fullmatch(r"(a+)+b", "a" * 64)


@app.job(process=Process(memory="192MB"))
def swells(size: int) -> int:
    return len(bytearray(size))


@app.job(process=True)
def segfaults() -> None:
    ctypes.string_at(0)


@app.job(process=True)
def exits(code: int) -> None:
    os._exit(code)


@app.job(process=True)
def dies_and_leaves(marks: str) -> None:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(marks).write_text(f"{os.getpid()} {started.pid}")
    os._exit(1)


@app.job(process=True)
def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(process=Process(niceness=5))
def nice() -> int:
    return os.nice(0)


@app.job(process=True, retry=Retry(max_attempts=5, give_up_on=(LookupError,)))
def raises_control(what: str) -> None:
    """End the attempt in the given way."""
    match what:
        case "retry":
            raise RetryLater(after=3600, message="not yet")
        case "retry with its own backoff":
            raise RetryLater(backoff=Backoff(base=7200.0, cap=7200.0, jitter=False))
        case "reject":
            raise Reject("bad_invoice", "there is no such invoice")
        case "cancel":
            raise Cancel("not wanted")
        case "give up":
            raise LookupError("it will never be there")
        case "leak":
            raise RuntimeError("the secret is canary-of-the-worker")


@app.job(process=True)
async def snoozes(ctx: Context) -> None:
    await ctx.spawn(in_here, key="one")
    ctx.snooze("2h", "later is better")


@app.job(process=True)
def completes(ctx: SyncContext) -> None:
    with ctx.transaction() as conn:
        conn.execute("create table if not exists in_a_child (n integer)")
        conn.execute("insert into in_a_child values (1)")


@app.job(process=True)
async def forks(number: int) -> int:
    """Fork, and let both processes continue, as with a library that forks silently."""
    os.fork()
    await asyncio.sleep(0.02)
    return number


@app.job()
def leaves_a_copy(marks: str) -> None:
    """Fork the worker itself, as with a process pool that was never closed."""
    copy = os.fork()
    if copy == 0:
        time.sleep(600)
        os._exit(0)
    Path(marks).write_text(str(copy))


@app.job(process=True, retry=Retry(max_attempts=1, max_crashes=0))
def writes_where_it_should_not(text: str) -> None:
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, text.encode())


@app.job(process=True, retry=Retry(max_attempts=1, max_crashes=0))
def closes_every_file() -> None:
    os.closerange(3, 256)


@app.job(process=True, retry=Retry(max_attempts=1))
async def exits_in_a_task() -> None:
    async def leave() -> None:
        sys.exit(3)

    await asyncio.gather(leave())


def pay_10(ctx: SyncContext) -> str:
    ctx.approval("pay", summary="Pay 10?")
    return ctx.step("pay", str, "paid")


def pay_more(ctx: SyncContext) -> str:
    ctx.approval("pay", summary="Pay 1,000,000?")
    return ctx.step("pay", str, "paid")


def pay_after_a_step(ctx: SyncContext) -> None:
    ctx.step("check", len, "checked")


def pay_without_asking(ctx: SyncContext) -> str:
    return "paid"
