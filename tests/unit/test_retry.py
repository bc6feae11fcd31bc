"""``Retry`` (the policy) and ``RetryLater`` (the exception with which a handler requests another attempt)."""

from __future__ import annotations

import contextlib
import copy
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Retry, RetryLater
from holdfast.engine.retry import AT_MOST_ONCE, GENTLE, as_policy, as_stored_policy, attempt_limit, fixed
from holdfast.errors import InvalidSetting

pytestmark = pytest.mark.req("CX-9", "JF-5")


def test_equal_policies_compare_and_hash_equal() -> None:
    one, two = Retry(3, backoff=fixed(2), give_up_on=(ValueError,)), Retry(3, fixed(2), give_up_on=[ValueError])  # type: ignore[arg-type]
    assert one == two
    assert hash(one) == hash(two)
    assert len({one, two, Retry(4)}) == 2
    assert one != Retry(3)


@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copied_policy_is_equal(remake: Any) -> None:
    policy = Retry(7, fixed(3), max_crashes=1, retry_on=(OSError,))
    assert remake(policy) == policy


def test_policy_is_immutable() -> None:
    policy = Retry(3)
    with pytest.raises(FrozenInstanceError):
        policy.max_attempts = 4  # type: ignore[misc]
    assert policy == Retry(3)


def test_policy_cannot_be_raised() -> None:
    with pytest.raises(TypeError, match="exceptions must derive"):
        raise Retry(3)  # type: ignore[misc]


def test_retry_later_is_raised_like_any_exception() -> None:
    @contextlib.contextmanager
    def passing() -> Iterator[None]:
        yield  # contextlib sets the traceback of an exception that passes through

    with pytest.raises(RetryLater) as caught, passing():
        raise RetryLater("5m", "the service is down") from OSError("cause")
    error = caught.value
    assert (error.after, str(error)) == (300.0, "the service is down")
    assert isinstance(error.__cause__, OSError)
    assert "cause" in "".join(traceback.format_exception(error))
    again = pickle.loads(pickle.dumps(error))
    assert (again.after, again.message, again.backoff) == (300.0, "the service is down", None)
    with pytest.raises(RetryLater, match="requested another attempt"):
        raise RetryLater


def test_retry_later_accepts_every_form_of_duration_and_backoff() -> None:
    assert {RetryLater(after).after for after in ("1m", 60, timedelta(minutes=1))} == {60.0}
    assert (RetryLater().after, RetryLater().backoff) == (None, None)
    assert RetryLater(backoff=fixed(9)).backoff == fixed(9)
    assert RetryLater(backoff="gentle").backoff == GENTLE


@pytest.mark.parametrize("after", [-1, "soon", True, float("nan"), float("inf")])
def test_retry_later_rejects_invalid_delay(after: Any) -> None:
    with pytest.raises(InvalidSetting) as caught:
        RetryLater(after)
    assert caught.value.code == "invalid_duration"


@pytest.mark.parametrize("given", [{"message": 3}, {"backoff": 3}])
def test_retry_later_rejects_invalid_field(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting) as caught:
        RetryLater(**given)
    assert caught.value.code == "invalid_retry"


@pytest.mark.parametrize("given", [{"retry_on": (3,)}, {"give_up_on": "ValueError"}, {"backoff": 3}])
def test_policy_rejects_invalid_field(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Retry(**given)
    assert caught.value.code == "invalid_retry"


@pytest.mark.parametrize("given", [RetryLater(3), 5, None, Retry])
def test_as_policy_rejects_other_values(given: object) -> None:
    with pytest.raises(InvalidSetting) as caught:
        as_policy(given)
    assert caught.value.code == "invalid_retry"


def test_policy_with_error_types_cannot_be_stored() -> None:
    policy = Retry(retry_on=(OSError,))
    assert as_policy(policy) is policy
    with pytest.raises(InvalidSetting, match="not stored"):
        as_stored_policy(policy)


@pytest.mark.parametrize(
    ("policy", "error", "final"),
    [
        (Retry(), ValueError(), False),
        (Retry(give_up_on=(ValueError,)), ValueError(), True),
        (Retry(give_up_on=(ValueError,)), UnicodeError(), True),  # a kind of ValueError
        (Retry(give_up_on=ValueError), OSError(), False),
        (Retry(retry_on=(OSError,)), ConnectionError(), False),
        (Retry(retry_on=(OSError,)), ValueError(), True),
        (Retry(retry_on=(OSError,), give_up_on=(PermissionError,)), PermissionError(), True),
    ],
)
def test_is_final_follows_retry_on_and_give_up_on(policy: Retry, error: BaseException, final: bool) -> None:
    assert policy.is_final(error) is final


@pytest.mark.req("SC-7")
def test_at_most_once_allows_one_attempt() -> None:
    assert (AT_MOST_ONCE.max_attempts, AT_MOST_ONCE.max_crashes) == (1, 0)


def test_attempt_limit_is_validated() -> None:
    assert (attempt_limit(None), attempt_limit(1), attempt_limit(101)) == (None, 1, 101)
    for bad in (0, 102, True, 2.0, "3"):
        with pytest.raises(InvalidSetting):
            attempt_limit(bad)
