"""The cost of schedules for unrelated work: a claim, and the check of a worker when no schedule is due."""

from __future__ import annotations

import statistics
import time
from contextlib import closing

from bench.depth import claim_seconds
from bench.subjects import Ours
from bench.timing import Row
from holdfast.features.assembly import Store
from tests.support.direct_sql import PostgresByHand, open_by_hand

MONTH = 2_592_000  # seconds
_COLUMNS = (
    "(id, tenant, name, timing, zone, kind, payload, anchor_at, next_fire_at, attend_at, created_by, created_at,"
    " updated_by, updated_at)"
)
_FACTS = "'bench', 's' || n, 'every 1h', 'UTC', 'noop', {payload}"


def fill(store: Store, size: int, due_in: int = MONTH) -> None:
    """Add schedules that are due at the same time. The argument of their jobs is their number."""
    with closing(open_by_hand(store.url)) as by_hand:
        if isinstance(by_hand, PostgresByHand):
            later, now = f"now() + interval '{due_in} s'", "now()"
            source, ident = f"generate_series(1, {size}) n", "uuid7()"
            anchor, payload = f"{later} - interval '1 h'", "json_build_object('number', n - 1)"
        else:
            later, now = f"(unixepoch() + {due_in}) * 1000000", "unixepoch() * 1000000"
            source = (
                f"(with recursive c(n) as (select 1 union all select n + 1 from c where n < {size}) select n from c)"
            )
            anchor, payload = f"{later} - 3600000000", "json_object('number', n - 1)"
            ident = "printf('%08x-0000-7000-8000-%012x', n, n)"
        by_hand.execute(
            f"insert into schedule {_COLUMNS} select {ident}, {_FACTS.format(payload=payload)}, {anchor}, {later},"
            f" {later}, 'bench', {now}, 'bench', {now} from {source}"
        )
        by_hand.execute("analyze schedule")


def measure(name: str, empty: Store, filled: Store, size: int, *, claims: int = 60, batch: int = 200) -> list[Row]:
    """Alternate between a database without schedules and one with many."""
    times: tuple[list[float], list[float]] = ([], [])
    subjects = (Ours(empty), Ours(filled))
    for _ in range(5):
        for subject, found in zip(subjects, times, strict=True):
            subject.enqueue(claims // 5 * batch, batch)
            found.append(claim_seconds(subject, claims // 5, batch))
    looks = tuple(statistics.median(_look(store) for _ in range(200)) for store in (empty, filled))
    claimed = tuple(statistics.median(found) for found in times)
    return [
        _row(name, f"claim of {batch} beside {size:,} schedules", claimed),
        _row(name, f"a look for what is due among {size:,} schedules", looks, bar=2.0),
    ]


def _look(store: Store) -> float:
    start = time.perf_counter()
    store.run(store.schedules.due(["noop"], 200, "*"))
    return time.perf_counter() - start


def _row(name: str, what: str, seconds: tuple[float, ...], bar: float = 1.3) -> Row:
    without, beside = seconds
    ratio = beside / without
    return Row(name, what, without * 1e3, beside * 1e3, "ms", ratio, f"≤ {bar:g}", ratio <= bar)
