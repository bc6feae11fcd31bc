"""``move``: a whole database goes to another store or server while programs use it.

The order of the steps is what ``spec/Move.tla`` proves; each can be repeated after this process was killed.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from holdfast.engine.redaction import shown_url
from holdfast.errors import Conflict, InvalidSetting, SchemaMismatch, StoreError, StoreUnavailable
from holdfast.features.assembly import open_store
from holdfast.features.audit.model import Report as Result
from holdfast.features.audit.verification import Check
from holdfast.features.moves.model import (
    PHASE,
    Estimate,
    Kind,
    Mark,
    MoveResult,
    Progress,
    Report,
    Row,
    Table,
    key_value,
    normal,
    not_moving,
    tables,
    under_way,
)
from holdfast.features.moves.sqlite import SqliteSide, no_source
from holdfast.features.moves.store import NOTES, Change, Side
from holdfast.stores.forwarding import SCHEMA, of_schema, with_schema, without_login

RANGE: Final = 10_000
"""Rows that are copied in one transaction."""
MOST_BYTES: Final = 32 * 1024 * 1024
"""Of payloads and other documents in one range, about."""
BRIEF: Final = 1.0
"""Seconds that the last changes take to follow before the switch begins."""
REFUSED_WITHIN: Final = 10.0
"""Seconds for the open transactions of writers to end, once the switch has begun."""
RECHECKS: Final = 50
"""How often a row that differs is read again: it may be changing."""
ROWS_PER_SECOND: Final = 60_000.0
"""For an estimate."""


@dataclass
class Mover:
    """One process that moves a database. ``at`` is called at the boundaries where it may be killed, for tests."""

    source: Side
    target: Side
    report: Report = lambda progress: None
    announced: str | None = None
    """The URL that programs are told; None: that of the target, without its password."""
    compares: bool = True
    result: MoveResult = field(init=False)
    at: Any = field(default=lambda point: None)
    tables: list[Table] = field(init=False)

    def __post_init__(self) -> None:
        owner = secrets.token_hex(8)
        self.source.owner = self.target.owner = owner
        self._began: tuple[str, float] = ("", 0.0)
        self._refused = 0.0
        self.result = MoveResult(id="", target=self.target.shown)

    # --- check ---

    def check(self) -> None:
        """Raise if the move cannot begin or continue. Changes nothing."""
        self._progress(PHASE.CHECK)
        if isinstance(self.source, SqliteSide) and not self.source.exists:
            raise no_source(self.source.path)
        for side in (self.source, self.target):
            side.check()
        if self.source.kind == self.target.kind and self.source.identity() == self.target.identity():
            raise InvalidSetting(
                "source and target are the same database", code="move_same_database", fix="Name another target."
            )
        if (gone := self.source.gone_to()) is not None:
            raise has_moved("source", gone)
        status = self.source.store.schema()
        if not status.current or status.unknown:
            raise other_release("source")

    def agree(self) -> None:
        """Find the tables. Raises if the databases do not fit together."""
        postgres_first = self.source.kind == "postgres"
        self.tables = tables(self.source.shapes(), self.target.shapes(), 0 if postgres_first else 1)

    def _agree_with_target(self, there: Mark | None, *, dry: bool = False) -> bool:
        """The target must be at this release too. One without tables gets them now, unless ``dry``. Returns whether it
        had tables."""
        existed = self.target.exists
        if there is None and self.target.kind == "postgres":
            if (gone := self.target.gone_to()) is not None:
                raise has_moved("target", gone)
            status = self.target.store.schema()
            if not status.applied:
                if not dry:
                    self.target.store.migrate()
            elif not status.current or status.unknown:
                raise other_release("target")
        if dry and not existed:
            known = self.source.shapes()
            self.tables = tables(known, known, 0)
            return False
        self.agree()
        if there is None:
            self.target.check_empty(self.tables)
        return existed

    def estimate(self) -> Estimate:
        """What a move would do. Changes nothing."""
        self._marks(resume=False)
        self.check()
        exists = self._agree_with_target(None, dry=True)
        rows = {table.name: self.source.count(table.name) for table in self.tables}
        rows = {name: count for name, count in rows.items() if count}
        return Estimate(rows=rows, seconds=sum(rows.values()) / ROWS_PER_SECOND, target_exists=exists)

    # --- the whole move ---

    def run(self, *, resume: bool = False) -> MoveResult:
        here, there = self._marks(resume=resume)
        if there is not None and there.phase == "open":
            self._use(there.id)
            return self._leave()
        if there is not None and there.phase == "closed":
            raise Conflict("this move was given up", code="move_given_up", fix="Finish that with --abort.")
        self.check()
        self._agree_with_target(there)
        self._use(here.id if here is not None else secrets.token_hex(8))
        if here is None or not here.progress.get("noting"):
            self.at("check")
            self.source.begin_noting(self.tables, self.target.shown)
        else:
            self.source.take_over()
        self.at("noting")
        if there is None:
            self.target.prepare(self.tables, self.source.shown)
            progress: dict[str, Any] = {}
        else:
            progress = dict(self.target.take_over().progress["tables"])
        self.at("prepared")
        self._copy(progress)
        self.target.finish_copy(self.tables)
        self.at("copied")
        if self.compares and (here is None or here.phase != "refusing"):  # or else writers wait for it
            self._compare()
        self._follow()
        self.at("followed")
        self._switch()
        return self._leave()

    def abort(self) -> None:
        """Give the move up: the source continues, and the target becomes empty."""
        here, there = self._marks(resume=True)
        if there is not None and there.phase == "open":
            raise Conflict("the target is in use already", code="move_done", fix="Finish the move with --resume.")
        if there is not None:
            self._use(there.id)
            self.target.close()
        self.at("closed")
        if here is not None:
            self._use(here.id)
            self.source.admit()
        self.at("admitted")
        if there is not None:
            self.target.clear()

    def _use(self, id: str) -> None:
        self.source.id = self.target.id = self.result.id = id

    def _marks(self, *, resume: bool) -> tuple[Mark | None, Mark | None]:
        here, there = self.source.mark(), self.target.mark()
        found = [mark for mark in (here, there) if mark is not None]
        if not resume and found:
            raise under_way(found[0])
        if resume and (not found or len({mark.id for mark in found}) > 1):
            raise not_moving()
        return here, there

    def _copy(self, progress: dict[str, Any]) -> None:
        total = sum(self.source.count(table.name) for table in self.tables)
        before = done = sum(each["done"] for each in progress.values())
        for table in self.tables:
            state = progress.get(table.name, {"after": None, "done": 0, "complete": False})
            after, limit = state["after"], RANGE
            while not state["complete"]:
                self._progress(PHASE.COPY, done, total, before)
                upper, limit = self._range(table, after, limit)
                rows = self.source.read(table, after, upper, self.target.kind)
                if not rows and upper is None:
                    break
                state = {"after": upper, "done": state["done"], "complete": upper is None}
                count = self.target.store_rows(table, rows, state)
                state["done"] += count
                done, after = done + count, upper
                self.at("range")
        self.result.copied, self.result.copy_seconds = done - before, time.monotonic() - self._began[1]

    def _range(self, table: Table, after: Sequence[Any] | None, limit: int) -> tuple[list[Any] | None, int]:
        """The end of the next range of rows, of which all fit into memory, and how many they are."""
        upper = self.source.upper(table, after, limit)
        while limit > 1 and self.source.size(table, after, upper) > MOST_BYTES:
            limit = max(1, limit // 4)
            upper = self.source.upper(table, after, limit)
        return upper, min(RANGE, limit * 2)

    # --- following ---

    def _follow(self, *, everything: bool = False) -> None:
        """Store the rows that have changed, until few are left, or none. First the notes are read, then the rows that
        they name, and exactly these notes are forgotten when the rows are stored."""
        followed, phase = 0, PHASE.SWITCH if everything else PHASE.FOLLOW
        self._progress(phase)
        while notes := self.source.notes():
            began = time.monotonic()
            self.target.apply(list(self._changes(notes)))
            self.at("applied")
            self.source.forget([n for n, _, _ in notes])
            followed += len(notes)
            self._progress(phase, followed)
            if not everything and len(notes) < NOTES and time.monotonic() - began < BRIEF:
                return

    def _changes(self, notes: Sequence[tuple[int, str, dict[str, Any]]]) -> Iterator[Change]:
        changed = {what: {json.dumps(key): key for _, _, key in group} for what, group in _grouped(notes)}
        for table in self.tables:
            keys = list(changed.get(table.name, {}).values())
            if keys:
                missing = set(self.source.missing(table, keys))
                gone = [
                    self._key(table, key, self.source.kind, self.target.kind)
                    for n, key in enumerate(keys)
                    if n in missing
                ]
                yield table, gone, self.source.fetch(table, keys, self.target.kind)

    @staticmethod
    def _key(table: Table, key: Mapping[str, Any], source: Kind, target: Kind) -> dict[str, Any]:
        return {name: key_value(table.types[name], value, source, target) for name, value in key.items()}

    # --- comparing ---

    def _compare(self) -> None:
        """Compare all rows of both databases. A row that differs may be changing: it is read again after following."""
        total, done = sum(self.source.count(table.name) for table in self.tables), 0
        different: dict[str, list[dict[str, Any]]] = {}
        for table in self.tables:
            count, wrong = 0, different.setdefault(table.name, [])
            for rows in self._pages(self.source, table):
                keys = [self._native(table, row, self.source.kind, table.key) for row in rows]
                if table.name == "job":
                    self._count_tenants(table, rows)
                there = self._values(self.target, table, keys)
                both = set(rows) & set(there)
                wrong += [key for row, key in zip(rows, keys, strict=True) if row not in both]
                count += len(rows)
                self._progress(PHASE.COMPARE, done + count, total)
            narrow = replace(table, columns=table.key, key=table.target_key)
            for rows in self._pages(self.target, narrow):
                keys = [self._native(narrow, row, self.source.kind, table.key) for row in rows]
                wrong += [keys[n] for n in self.source.missing(table, keys)]
            self.result.rows[table.name] = count
            done += count
        self.result.compared = done
        self._settle(different)

    def _pages(self, side: Side, table: Table) -> Iterator[Sequence[Row]]:
        after, limit = None, RANGE
        while True:
            upper, limit = (
                self._range(table, after, limit) if side is self.source else (side.upper(table, after, RANGE), RANGE)
            )
            if rows := side.read_values(table, after, upper):
                yield rows
            if upper is None:
                return
            after = upper

    def _native(self, table: Table, row: Row, kind: Kind, names: Sequence[str]) -> dict[str, Any]:
        """The key of a row that is as SQLite keeps it."""
        values = dict(zip(table.columns, row, strict=True))
        key = {name: value for name, value in values.items() if name in names}
        return self._key(table, key, "sqlite", kind)

    def _values(self, side: Side, table: Table, keys: Sequence[dict[str, Any]]) -> Sequence[Row]:
        """The rows with these keys of the source, as SQLite keeps them."""
        native = [self._key(table, key, self.source.kind, side.kind) for key in keys]
        return side.fetch(table, native, "sqlite")  # type: ignore[return-value]

    def _settle(self, different: Mapping[str, list[dict[str, Any]]]) -> None:
        """Read rows that differ again, after following: they may have changed since."""
        for attempt in range(RECHECKS):
            if attempt:
                time.sleep(0.02)
            self._follow()
            different = {table.name: self._differing(table, different.get(table.name, [])) for table in self.tables}
            if not any(different.values()):
                return
        names = {name: keys for name, keys in different.items() if keys}
        name, keys = next(iter(names.items()))
        raise StoreError(
            f"{sum(map(len, names.values()))} rows differ, such as {name} {json.dumps(keys[0])}",
            code="move_differs",
            fix="Give the move up with --abort. The source is unchanged.",
        )

    def _differing(self, table: Table, keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for start in range(0, len(keys), RANGE):
            some = keys[start : start + RANGE]
            here, there = (
                {json.dumps(self._native(table, row, self.source.kind, table.key)): normal(table, row) for row in rows}
                for rows in (self._values(self.source, table, some), self._values(self.target, table, some))
            )
            found += [json.loads(key) for key in here.keys() | there.keys() if here.get(key) != there.get(key)]
        return found

    def _count_tenants(self, table: Table, rows: Sequence[Row]) -> None:
        column = table.columns.index("tenant")
        for tenant, count in Counter(row[column] for row in rows).items():
            self.result.tenants[tenant] = self.result.tenants.get(tenant, 0) + count

    # --- switching ---

    def _switch(self) -> None:
        self._progress(PHASE.SWITCH)
        self._refused = time.monotonic()
        try:
            self.source.refuse(self.tables, self.target.shown, time.monotonic() + REFUSED_WITHIN)
        except StoreError as error:
            if error.code == "move_blocked":
                self.source.stop_refusing()
            raise
        self.at("refusing")
        self._follow(everything=True)
        cursors = self.source.cursors() if self.source.kind != self.target.kind else []
        self.at("before open")
        self.target.open(self.tables, self.source.kind, cursors)
        self.at("open")

    def _leave(self) -> MoveResult:
        """The target is open: the source says where to go."""
        if self.source.gone_to() is None:
            self.source.leave(with_schema(self.announced or self._address(), self.target.schema))
        self.result.refused_seconds = time.monotonic() - self._refused if self._refused else 0.0
        self.at("left")
        self.target.forget_move()
        self._progress(PHASE.FINISH)
        return self.result

    def _address(self) -> str:
        """The URL that programs are told: between servers without a login, because each program has its own."""
        servers = self.source.kind == self.target.kind == "postgres"
        return without_login(self.target.url) if servers else self.target.announced

    def verify(self) -> Result:
        """Verify the audit trail of the target."""
        store, check = self.target.store, Check()
        while (block := store.run(store.audit.block(check.last))) is not None:
            check.add(block)
            self._progress(PHASE.VERIFY, check.events)
        return check.end(store.run(store.audit.unsealed(check.last)))

    def _progress(self, phase: str, done: int = 0, total: int | None = None, before: int = 0) -> None:
        now = time.monotonic()
        if self._began[0] != phase:
            self._began = (phase, now)
        self.report(Progress(phase=phase, done=done, total=total, seconds=now - self._began[1], before=before))


def _grouped(notes: Sequence[tuple[int, str, dict[str, Any]]]) -> Iterator[tuple[str, Any]]:
    return groupby(sorted(notes, key=itemgetter(1)), itemgetter(1))


def has_moved(which: str, told: str) -> StoreUnavailable:
    url, schema = of_schema(told)
    within = "" if schema == SCHEMA else f" --schema {schema}"
    return StoreUnavailable(
        f"the {which} was moved to {shown_url(url)} already",
        code="database_moved",
        fix=f"Name the database that is in use: {shown_url(url)}{within}",
    )


def other_release(which: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the {which} is not at this release",
        code="move_other_release",
        fix="Upgrade both databases with this release: holdfast migrate.",
    )


@contextmanager
def mover(source: str, target: str, *, schema: str = "holdfast", **options: Any) -> Iterator[Mover]:
    """Open both databases."""
    with ExitStack() as stack:
        sides = [stack.enter_context(_side(url, schema)) for url in (source, target)]
        yield Mover(sides[0], sides[1], **options)


@contextmanager
def _side(url: str, schema: str) -> Iterator[Side]:
    with closing(open_store(url, schema=schema, follows=False)) as store, ExitStack() as stack:
        if store.embedded:
            yield SqliteSide(store, stack)  # type: ignore[arg-type]
            return
        from holdfast.features.moves.postgres import PostgresSide  # the packages for PostgreSQL are optional

        yield PostgresSide(store, stack)  # type: ignore[arg-type]
