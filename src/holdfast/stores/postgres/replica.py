"""``Replica``: a standby that serves the reads of a request once it has everything that was committed before.

So a page is never older than the request for it, and a program reads what it has just written. A standby that has not
caught up within ``WAITS_FOR``, or does not respond, is left out: the primary serves.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.engine.operation import adrive, drive
from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting, StoreError
from holdfast.stores.flow import Flow, Statement, Steps, flow, read_request
from holdfast.stores.requests import Finding

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresDatabase

log = logging.getLogger("holdfast.store")

# Seconds to wait for the standby, and between two looks.
WAITS_FOR, LOOK_EVERY = 0.1, 0.005
# Seconds for which a standby that failed is left out, and that it may take to say how far it is.
LEFT_OUT, SAYS_WITHIN = 15.0, 0.5
ANSWER_WITHIN = 5.0


@flow(writes=False, single=True)
def _position() -> Steps[tuple[str, int]]:
    """The end of the log, and the identifier that a server shares with its standbys."""
    rows = yield Statement("select pg_current_wal_lsn()::text, (select system_identifier from pg_control_system())")
    return rows[0][0], rows[0][1]


def _has_reached(position: str, system: int) -> Flow[tuple[bool, bool]]:
    """Whether the standby has replayed the log up to there, and whether it is one of that server."""
    start = functools.partial(_reached, position, system)
    return Flow(start, writes=False, single=True, response_timeout=SAYS_WITHIN)


def _reached(position: str, system: int) -> Steps[tuple[bool, bool]]:
    rows = yield Statement(
        "select pg_last_wal_replay_lsn() >= %s::pg_lsn, system_identifier = %s from pg_control_system()",
        (position, system),
    )
    return bool(rows[0][0]), bool(rows[0][1])


Ask: TypeAlias = "tuple[PostgresDatabase, Flow[Any]] | None"
"""A flow to run on one of the two; None for a pause."""


class Replica:
    def __init__(self, store: PostgresDatabase) -> None:
        self.store = store
        self._left_out_until = 0.0

    def serves(self, primary: PostgresDatabase, flow: Flow[Any]) -> bool:
        """Whether the standby has everything that is committed now. Asked for each read: one that follows a
        notification must find what it was about."""
        return drive(self._serves(primary, flow), _ask, Exception)

    async def aserves(self, primary: PostgresDatabase, flow: Flow[Any]) -> bool:
        return await adrive(self._serves(primary, flow), _aask, Exception)

    def failed(self, error: Exception) -> None:
        if time.monotonic() >= self._left_out_until:
            log.warning("The standby for reads is left out for %.0f s: %s", LEFT_OUT, error)
        self._left_out_until = time.monotonic() + LEFT_OUT

    def finding(self, primary: PostgresDatabase) -> Finding:
        """For ``holdfast doctor``."""
        name, began = "standby for reads", time.monotonic()
        try:
            follows = drive(self._follows(primary, 10 * WAITS_FOR), _ask, Exception)
        except (StoreError, InvalidSetting) as error:
            return Finding(name, False, str(error), "Correct HOLDFAST_READ_URL. Until then requests read the primary.")
        behind = 1000 * (time.monotonic() - began)
        if not follows:
            return Finding(
                name, False, f"more than {behind:.0f} ms behind", "Until it has caught up, requests read the primary."
            )
        return Finding(name, True, f"at most {behind:.0f} ms behind")

    def _serves(self, primary: PostgresDatabase, flow: Flow[Any]) -> Generator[Ask, Any, bool]:
        """Once a read of a request had to wait too long, its other reads do not wait."""
        request = read_request.get()
        if request is None or request.standby is False or flow.writes or time.monotonic() < self._left_out_until:
            return False
        request.standby = False  # the statement of this check goes to the primary
        try:
            request.standby = yield from self._follows(primary, WAITS_FOR)
        except (StoreError, InvalidSetting) as error:
            self.failed(error)
        return bool(request.standby)

    def _follows(self, primary: PostgresDatabase, within: float) -> Generator[Ask, Any, bool]:
        position = yield primary, _position()
        until = time.monotonic() + within
        while time.monotonic() < until:
            reached, related = yield self.store, _has_reached(*position)
            if not related:
                raise InvalidSetting(
                    f"{shown_url(self.store.url)} is not a copy of the database that jobs are written to",
                    code="invalid_setting",
                    fix="Let HOLDFAST_READ_URL name a standby of it, or leave it out.",
                )
            if reached:
                return True
            yield None
        return False


def _ask(ask: Ask) -> Any:
    return time.sleep(LOOK_EVERY) if ask is None else ask[0].run(ask[1])


async def _aask(ask: Ask) -> Any:
    return await (asyncio.sleep(LOOK_EVERY) if ask is None else ask[0].arun(ask[1]))
