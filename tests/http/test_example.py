"""The example of a program that has no database (JF-14)."""

from __future__ import annotations

import pytest

from tests.docs.test_examples import load


@pytest.mark.req("JF-14")
def test_over_http(sqlite_url: str) -> None:
    assert load("over_http").main(sqlite_url) == [
        "asked twice, one job: True",
        "order 7: 20 refunded",
        "Refund 500 for order 8? approved",
        "ada may not enqueue: missing_scope",
        "order 8: 500 refunded",
        "enqueue by site",
        "approve by ada",
    ]
