"""The order in which a worker claims from its queues: as listed, or drawn by weight."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from holdfast.engine.order import check_weights, drawn_order
from holdfast.errors import InvalidSetting

ROUNDS = 6_000


def firsts(weights: dict[str, int], queues: tuple[str, ...] = ("a", "b", "c")) -> Counter[str]:
    dice = random.Random(11)
    return Counter(drawn_order(queues, weights, dice.random)[0] for _ in range(ROUNDS))


@pytest.mark.req("JF-7")
@pytest.mark.parametrize("weights", [None, {}])
def test_order_without_weights_is_as_listed(weights: dict[str, int] | None) -> None:
    assert drawn_order(["b", "a", "c"], weights, random.random) == ("b", "a", "c")


@pytest.mark.req("JF-7")
def test_queue_comes_first_in_proportion_to_its_weight() -> None:
    counts = firsts({"a": 3, "b": 2, "c": 1})
    for queue, share in {"a": 3 / 6, "b": 2 / 6, "c": 1 / 6}.items():
        assert counts[queue] / ROUNDS == pytest.approx(share, abs=0.03)


@pytest.mark.req("JF-7")
def test_default_weight_is_one() -> None:
    assert firsts({"a": 3}, ("a", "b"))["b"] / ROUNDS == pytest.approx(1 / 4, abs=0.03)


@pytest.mark.req("JF-7")
def test_remaining_order_is_weighted_too() -> None:
    dice = random.Random(12)
    orders = [drawn_order(("a", "b", "c"), {"a": 1000, "b": 3, "c": 1}, dice.random) for _ in range(ROUNDS)]
    second = Counter(order[1] for order in orders if order[0] == "a")
    assert second["b"] / second.total() == pytest.approx(3 / 4, abs=0.03)
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)


@pytest.mark.req("JF-7")
def test_random_zero_is_accepted() -> None:
    assert set(drawn_order(("a", "b"), {"a": 2}, lambda: 0.0)) == {"a", "b"}


@pytest.mark.req("JF-7")
@pytest.mark.parametrize("weight", [0, -1, 1001, True, 1.5, "3"])
def test_invalid_weight_is_rejected(weight: object) -> None:
    with pytest.raises(InvalidSetting, match="weight"):
        check_weights({"mail": weight})  # type: ignore[dict-item]
