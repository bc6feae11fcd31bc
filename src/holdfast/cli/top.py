"""``holdfast top``: how the work stands, live: queues, workers, what runs, what failed, what people are asked.

One bounded look a refresh (``verbs.pulse`` and a page of what runs), whatever the size of the database; the last line
says what it took. On a terminal q ends it and p holds it; elsewhere, and with ``--once`` or ``--json``, it is one look.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.live import Live

from holdfast.cli import options
from holdfast.cli.output import console, emit, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.top_view import Look, Question, Running, as_lines, picture
from holdfast.engine.states import State
from holdfast.errors import InvalidSetting, StoreError
from holdfast.features.approvals.model import GateFilter
from holdfast.stores.requests import JobFilter
from holdfast.stores.session import Client

LEAST, MOST = 0.2, 3600.0
RUNNING, ASKED = 15, 5
STEP = 0.1


def top(
    session: AnyTenant,
    interval: Annotated[str, typer.Option("--interval", metavar="SPAN", help="How often to look: 2s, 500ms.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Look once, print, and leave.")] = False,
) -> None:
    """Watch queues, workers, running jobs, failures and approvals. q ends it, p holds it.

    Into a pipe, and with --json, it is one look.
    """
    every = options.positive(interval, "interval")
    if not LEAST <= every <= MOST:
        raise InvalidSetting(
            "the interval is at least 200 ms and at most an hour", code="invalid_duration", fix="--interval 2s"
        )
    whose = session.scope
    with session.connect() as client:
        if session.as_json:
            emit(look(client, whose))
        elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            found = look(client, whose)
            screen = console(soft_wrap=False)
            if screen.is_terminal:
                screen.print(picture(found, every, screen.width, screen.height))
            else:
                _lines(found)
        else:
            _live(client, whose, every)


def look(client: Client, tenant: str) -> Look:
    """One look. What cannot be read just now is said, and looked for again."""
    began = time.perf_counter()
    verbs = client.verbs
    try:
        pulse = client.run(verbs.pulse(tenant))
        running = client.run(verbs.list_jobs(JobFilter(tenant=tenant, state=State.IN_PROGRESS, limit=RUNNING)))
        asked = client.run(verbs.gates(GateFilter(tenant=tenant, limit=ASKED)))
    except StoreError as error:
        return Look(None, (), (), time.perf_counter() - began, trouble=error.code)
    took = time.perf_counter() - began
    return Look(pulse, tuple(map(Running.of, running)), tuple(map(Question.of, asked)), took)


def _lines(found: Look) -> None:
    for text in as_lines(found):
        write(text)


@dataclass
class _Keys:
    held: bool = False
    over: bool = False

    def take(self, typed: str) -> None:
        for key in typed.lower():
            if key in ("q", "\x03", "\x1b"):
                self.over = True
            elif key in ("p", " "):
                self.held = not self.held


def _live(client: Client, tenant: str, every: float) -> None:
    screen, keys = console(soft_wrap=False), _Keys()
    found = look(client, tenant)
    live = Live(console=screen, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _unbuffered(), live:
        while not keys.over:
            live.update(picture(found, every, screen.width, screen.height, held=keys.held), refresh=True)
            if _waited(every, keys) and not keys.held:
                found = look(client, tenant)


def _waited(every: float, keys: _Keys) -> bool:
    """Until it is time to look again, or a key has changed something to be seen: False then."""
    end, held = time.monotonic() + every, keys.held
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], min(left, STEP))
        if ready:
            keys.take(os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace"))
        if keys.over or keys.held is not held:
            return False
    return True


@contextlib.contextmanager
def _unbuffered() -> Iterator[None]:
    """Keys come one by one and are not shown; as it was afterwards, whatever happens."""
    import termios
    import tty

    place = sys.stdin.fileno()
    before = termios.tcgetattr(place)
    try:
        tty.setcbreak(place)
        yield
    finally:
        termios.tcsetattr(place, termios.TCSADRAIN, before)
