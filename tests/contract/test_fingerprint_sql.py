"""Fingerprints in SQL equal those in Python, so that failures reported by SQL join the same groups."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from holdfast.engine.settlement import fingerprint, shape
from holdfast.features.assembly import Store, open_store
from tests.support.direct_sql import PostgresByHand
from tests.unit.test_fingerprint import SHAPES

pytestmark = pytest.mark.req("DP-15")

PARTS = [
    "a",
    "F0",
    "7",
    "_",
    "'",
    '"',
    "`",
    "/",
    "\\",
    ":",
    "-",
    ".",
    ",",
    " ",
    "\n",
    "\t",
    "é",
    "<n>",
    "<",
    "://",
    "x1",
]
PARTS += ["deadbeef", "2027-01-31", "T09:00:00", "01a1de74-eb8c-70f1-843b-cac5f6817387", "http", "C:\\", "+01:00", "Z"]


def test_sql_fingerprint_equals_python(owned_postgres_url: str) -> None:
    draw = random.Random(15)
    messages = [*SHAPES, *("".join(draw.choices(PARTS, k=draw.randint(1, 25))) for _ in range(3000))]
    with closing(PostgresByHand(owned_postgres_url)) as by_hand:
        rows = by_hand.execute(
            "select shape(m), fingerprint('pay', 'E', m)"
            " from unnest(cast(:messages as text[])) with ordinality as t(m, n) order by n",
            {"messages": messages},
        )
    wrong = [(m, row[0], shape(m)) for m, row in zip(messages, rows, strict=True) if row[0] != shape(m)]
    assert wrong == []
    assert [row[1] for row in rows] == [fingerprint("pay", "E", m) for m in messages]


def test_failure_reported_by_sql_joins_the_group(owned_postgres_url: str) -> None:
    with closing(open_store(owned_postgres_url)) as store, closing(PostgresByHand(owned_postgres_url)) as by_hand:
        _check_group(store, by_hand)


def _check_group(store: Store, by_hand: PostgresByHand) -> None:
    (made,) = by_hand.execute("select id from enqueue('pay', for_tenant => 'default')")
    (held,) = by_hand.execute("select lease from claim('default', 'me', for_tenant => 'default')")
    by_hand.execute(
        "select * from fail(:job, :lease, 'Refused', 'order 7 was refused', true, 'default')",
        {"job": made[0], "lease": held[0]},
    )
    group = store.run(store.dead_letters.group_of(str(made[0]), "default"))
    assert group is not None
    assert group.fingerprint == fingerprint("pay", "Refused", "order 9 was refused")
