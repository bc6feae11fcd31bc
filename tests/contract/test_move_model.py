"""Random moves compared with a plain list: the queue has the order of the list (SC-2, SC-3)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.features.assembly import Store
from tests.support.direct_sql import ByHand
from tests.support.features import crowd, moved, order_of
from tests.support.stores import claim, open_lease, put, put_one, spec

pytestmark = pytest.mark.req("SC-2", "SC-3")

JOBS = 9
numbers = st.integers(0, JOBS - 1)
levels = st.sampled_from([0, 0, 0, 1, -1])
moves = st.one_of(
    st.tuples(st.sampled_from(["first", "last"]), numbers, st.none() | levels),
    st.tuples(st.sampled_from(["before", "after"]), numbers, numbers),
    st.tuples(st.just("crowd"), st.none(), st.none()),
    st.tuples(st.just("enqueue"), st.none(), levels),
)


class Lines:
    """The expected order: one list per priority."""

    def __init__(self, ids: list[str]) -> None:
        self.of: dict[int, list[str]] = {-1: [], 0: list(ids), 1: []}

    @property
    def order(self) -> list[str]:
        return self.of[1] + self.of[0] + self.of[-1]

    def leave(self, job_id: str) -> int:
        """Remove a job and return its priority."""
        (level,) = (level for level, line in self.of.items() if job_id in line)
        self.of[level].remove(job_id)
        return level

    def move(self, job_id: str, where: str, other: str | None, level: int | None) -> None:
        if other == job_id:
            return
        was = self.leave(job_id)
        if other is None:
            line = self.of[was if level is None else level]
            line.insert(0 if where == "first" else len(line), job_id)
        else:
            (line,) = (line for line in self.of.values() if other in line)
            line.insert(line.index(other) + (where == "after"), job_id)


@pytest.mark.slow
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(moves_made=st.lists(moves, min_size=5, max_size=30))
def test_queue_order_equals_the_model(
    store: Store, by_hand: ByHand, moves_made: list[tuple[str, int | None, int | None]]
) -> None:
    lease = open_lease(store)
    claim(store, lease, 1000)  # jobs of the previous example
    ids = put(store, *(spec() for _ in range(JOBS)))
    lines = Lines(ids)
    for what, number, rest in moves_made:
        if what == "crowd":  # no free positions; below the positions of new jobs, as always
            for line in lines.of.values():
                crowd(by_hand, line, start=-50)
        elif what == "enqueue":
            lines.of[rest or 0].append(put_one(store, priority=rest or 0))
        elif what in ("first", "last"):
            moved(store, ids[number or 0], **{what: True, "priority": rest})
            lines.move(ids[number or 0], what, None, rest)
        else:
            other = ids[rest or 0]
            moved(store, ids[number or 0], **{what: other})
            lines.move(ids[number or 0], what, other, None)
        assert order_of(store) == lines.order, what
    assert [each.id for each in claim(store, lease, 1000)] == lines.order
