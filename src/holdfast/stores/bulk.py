"""Working off a bulk operation (DP-15): find the next jobs, do to them what was asked, move its place on.

One transaction a batch, so a process that is killed has done all of it or nothing, and each job has one turn: places
only go down. Many processes may work at once: one has the operation's row, the others look for another operation.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.engine.states import ACTIVE, State, state_of
from holdfast.errors import InvalidSetting
from holdfast.features.dead_letters.model import COUNTED, WINDOW, Operation
from holdfast.stores.flow import Steps
from holdfast.stores.job_reads import ids, page
from holdfast.stores.reads import Reads
from holdfast.stores.requests import JobFilter

_SPAN = ("since", "until")
_NOT_KEPT = ("tenant", "before", "limit", "payloads")


log = logging.getLogger("holdfast.store")


def as_wanted(wanted: JobFilter) -> str:
    """A filter as an operation keeps it: the names that were given, and their values."""
    given = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted)}
    kept = {name: value for name, value in given.items() if value is not None and name not in _NOT_KEPT}
    return json.dumps({name: _plain(value) for name, value in kept.items()}, sort_keys=True)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def for_verb(verb: str, wanted: JobFilter) -> JobFilter:
    """The filter with the state that the verb is about."""
    if verb == "cancel":
        if wanted.state is not None and wanted.state not in ACTIVE:
            raise InvalidSetting(f"jobs that are {wanted.state} have ended, and cannot be cancelled", code="not_active")
        return wanted
    if wanted.state not in (None, State.DEAD_LETTER):
        raise InvalidSetting(
            f"a {verb} is for dead letters, not for jobs that are {wanted.state}", code="only_dead_letters"
        )
    return dataclasses.replace(wanted, state=State.DEAD_LETTER)


class Operating(Reads):
    def _work(self, tenant: str, only: str | None) -> Steps[int | None]:
        found = yield from self._hold_operation(only, tenant)
        if found is None:
            return None
        try:
            most = found.batch
            _filter(found, most)
        except Exception:
            # Nobody can tell which jobs were meant: it ends with none, and the other operations have their turn.
            log.error("operation %s of tenant %s cannot be read, and is ended", found.id, found.tenant)
            yield from self._do_operation(found, [], None, True)
            return 0
        seen = yield from self._next_jobs(found, most)
        jobs = [job_id for job_id, state in seen if found.verb != "cancel" or state in ACTIVE][:most]
        full = len(seen) == (most if _narrow(found) else WINDOW)
        # Of a window that had more than a batch in it, the rest is for the next one.
        last = jobs[-1] if len(jobs) == most else seen[-1][0] if seen else None
        over = not full and (not jobs or last == seen[-1][0])
        yield from self._do_operation(found, jobs, last, over)
        return len(jobs)

    def _next_jobs(self, found: Operation, most: int) -> Steps[list[tuple[str, State]]]:
        """By id, newest first, from where the last batch ended."""
        wanted = _filter(found, most if _narrow(found) else WINDOW)
        text, params = page("page.id, s.state", wanted)
        rows = yield from self._ask(found.tenant, text, **params)
        return [(self.dialect.codec.id(row[0]), state_of(row[1])) for row in rows]

    def _count(self, wanted: JobFilter) -> Steps[int]:
        """How many there are, up to one more than is counted."""
        found, params = ids(dataclasses.replace(wanted, limit=COUNTED + 1), COUNTED + 1)
        text = f"select count(*) from ({found}) c"
        if wanted.state is None:
            active = ", ".join(f"'{state}'" for state in sorted(ACTIVE))
            text += f" join {{job_state}} s on s.id = c.id where s.state in ({active})"
        rows = yield from self._ask(wanted.tenant, text, **params)
        return int(rows[0][0])

    # --- what each store does in its own way ---

    def _hold_operation(self, only: str | None, tenant: str) -> Steps[Operation | None]:
        """The one that is due to oneself; None when there is none, or others have them."""
        raise NotImplementedError

    def _do_operation(self, found: Operation, jobs: Sequence[str], last: str | None, over: bool) -> Steps[None]:
        raise NotImplementedError


def _narrow(found: Operation) -> bool:
    """Whether all that the filter finds are jobs to be worked on."""
    return "state" in found.wanted


def _filter(found: Operation, limit: int) -> JobFilter:
    given: dict[str, Any] = {
        name: datetime.fromisoformat(value) if name in _SPAN else State(value) if name == "state" else value
        for name, value in found.wanted.items()
    }
    return JobFilter(tenant=found.tenant, before=found.place, limit=limit, **given)
