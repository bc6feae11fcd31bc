"""Retry delays match the documentation, stay within bounds for any input, and round-trip through JSON."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.engine.payload import decode, encode
from holdfast.engine.retry import (
    EXPONENTIAL,
    GENTLE,
    HOURLY_CAP,
    MAX_DELAY,
    PATIENT,
    PRESETS,
    Backoff,
    Retry,
    as_policy,
    can_retry,
    fixed,
    is_permanent,
    preset,
)
from holdfast.engine.states import State
from holdfast.errors import InvalidArguments, InvalidSetting

pytestmark = pytest.mark.req("CX-9")

backoffs = st.builds(
    Backoff,
    base=st.floats(0, MAX_DELAY),
    factor=st.floats(1, 1_000),
    cap=st.floats(0, MAX_DELAY),
    jitter=st.booleans(),
    head=st.integers(0, 100),
)


def table(backoff: Backoff, retries: int) -> list[float]:
    return [backoff.ceiling(retry) for retry in range(1, retries + 1)]


def test_default_backoff_matches_documentation() -> None:
    assert Backoff() == EXPONENTIAL == Backoff(base=1, factor=2, cap=300, jitter=True)
    assert table(EXPONENTIAL, 12) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


@pytest.mark.req("HK-3")
def test_gentle_backoff_waits_one_second_twice() -> None:
    assert table(GENTLE, 10) == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_hourly_cap_and_fixed_backoff_delays() -> None:
    assert table(HOURLY_CAP, 14) == [2**n for n in range(12)] + [3_600, 3_600]
    assert table(fixed(2.5), 100) == [2.5] * 100
    assert fixed(7).delay(3, 0.1) == 7


def test_jitter_takes_a_share_of_the_ceiling() -> None:
    assert GENTLE.delay(5, 0.25) == 8
    assert EXPONENTIAL.delay(5, 0.25) == 4
    assert EXPONENTIAL.delay(5, 0.0) == 0


@given(backoffs, st.integers(1, 10_000), st.floats(0, 1))
def test_delays_are_finite_bounded_and_never_shrink(backoff: Backoff, retry: int, random01: float) -> None:
    ceiling = backoff.ceiling(retry)
    assert math.isfinite(ceiling)
    assert min(backoff.base, backoff.cap) <= ceiling <= backoff.cap or backoff.base == ceiling == 0
    assert ceiling <= backoff.ceiling(retry + 1)
    assert 0 <= backoff.delay(retry, random01) <= ceiling


@given(backoffs, st.integers(1, 100))
def test_power_is_finite_for_every_retry_the_database_allows(backoff: Backoff, retry: int) -> None:
    # So the SQL version needs no guard against overflow, and both compute the same formula.
    power = backoff.base * backoff.factor ** max(0, retry - 1 - backoff.head)
    assert math.isfinite(power)
    assert backoff.ceiling(retry) == min(backoff.cap, power)


@given(st.integers(0, 10), st.integers(1, 4), st.integers(0, 5_000), st.integers(0, 3), st.integers(1, 100))
def test_small_whole_numbers_are_exact(base: int, factor: int, cap: int, head: int, retry: int) -> None:
    exact = min(Fraction(cap), base * Fraction(factor) ** max(0, retry - 1 - head))
    assert Backoff(base, factor, cap, head=head).ceiling(retry) == exact


@given(backoffs)
def test_backoff_round_trips_through_json(backoff: Backoff) -> None:
    written = decode(encode(backoff.to_json()))
    assert Backoff.from_json(written) == backoff
    assert json.dumps(Backoff.from_json(written).to_json()) == json.dumps(backoff.to_json())


def test_backoff_from_json_fills_defaults_and_ignores_unknown_fields() -> None:
    assert Backoff.from_json({}) == EXPONENTIAL
    assert Backoff.from_json({"cap": 60, "jitter": False, "head": 1, "shape": "new"}) == GENTLE


@pytest.mark.parametrize("wrong", [None, [], "gentle", 5])
def test_backoff_from_json_rejects_non_objects(wrong: object) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Backoff.from_json(wrong)
    assert caught.value.code == "invalid_backoff"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("base", value) for value in (-1, math.nan, math.inf, 10**400, MAX_DELAY + 1, "1", None, True)),
        *(("factor", value) for value in (0, 0.99, -2, math.nan, math.inf, 1_001, "2")),
        *(("cap", value) for value in (-0.1, math.nan, math.inf, 2_592_001, "x")),
        *(("jitter", value) for value in (1, 0, None, "yes")),
        *(("head", value) for value in (-1, 101, 1.0, True, "1")),
    ],
)
def test_invalid_backoff_field_is_rejected(field: str, value: object) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Backoff.from_json({field: value})
    assert caught.value.code == "invalid_backoff"
    assert caught.value.message.startswith(field)


@pytest.mark.req("HK-3")
def test_presets_are_found_by_name() -> None:
    assert {name: preset(name) for name in PRESETS} == dict(PRESETS)
    assert (preset("exponential"), preset("gentle"), preset("hourly_cap")) == (
        EXPONENTIAL,
        GENTLE,
        HOURLY_CAP,
    )
    with pytest.raises(InvalidSetting) as caught:
        preset("brutal")
    assert caught.value.code == "invalid_backoff"
    assert "gentle" in str(caught.value)
    with pytest.raises(TypeError):
        PRESETS["mine"] = EXPONENTIAL  # type: ignore[index]


@pytest.mark.req("JF-5")
def test_default_policy_allows_ten_attempts_over_hours() -> None:
    policy = Retry()
    assert (policy.max_attempts, policy.max_crashes) == (10, 3)
    assert policy.span == sum((1, 4, 16, 64, 256, 1024, 4096, 7200, 7200))
    assert Retry(max_attempts=1).span == 0
    assert policy.backoff == PATIENT == Backoff(factor=4, cap=7200)


@pytest.mark.parametrize("attempts", [1, 101])
def test_max_attempts_accepts_its_bounds(attempts: int) -> None:
    assert Retry(max_attempts=attempts).max_attempts == attempts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_attempts", value) for value in (0, -1, 102, 5.0, True, None, "5")),
        *(("max_crashes", value) for value in (-1, 101, 3.0, None, False)),
        *(("backoff", value) for value in (None, 2.5, 5)),
    ],
)
def test_invalid_policy_field_is_rejected(field: str, value: Any) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Retry(**{field: value})
    assert caught.value.code == "invalid_retry"


@pytest.mark.req("HK-3")
def test_policy_accepts_preset_by_name() -> None:
    for name, backoff in PRESETS.items():
        assert Retry(backoff=name) == Retry(backoff=backoff) == as_policy(name)
        assert Retry(backoff=name).backoff is backoff
    with pytest.raises(InvalidSetting) as caught:
        Retry(backoff="rough")
    assert caught.value.code == "invalid_backoff"
    assert "gentle" in str(caught.value)
    with pytest.raises(InvalidSetting):
        as_policy("rough")


@pytest.mark.req("HK-3")
@given(st.sampled_from(State), st.integers(0, 20), st.integers(0, 20))
def test_can_retry_compares_attempts_except_for_running_and_succeeded(state: State, attempts: int, most: int) -> None:
    if state in (State.SUCCEEDED, State.IN_PROGRESS):
        assert not can_retry(state, attempts, most)
    else:
        assert can_retry(state, attempts, most) is (attempts < most)
    assert can_retry(state.value, attempts, most) == can_retry(state, attempts, most)


@pytest.mark.req("HK-3")
def test_can_retry_allows_as_many_attempts_as_the_default_policy() -> None:
    assert [can_retry("failed", attempts) for attempts in (0, 9, 10, 11)] == [True, True, False, False]


def _raised(function: Any, *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _body(value: Any) -> int:
    return len(value)


@pytest.mark.req("JF-5", "HK-3")
def test_errors_of_the_program_are_permanent_unless_the_policy_names_them() -> None:
    import_failed = InvalidSetting("the child process cannot import x", code="import_failed")
    unreachable = InvalidSetting("the child process cannot import x", code="import_failed")
    import_failed.__cause__, unreachable.__cause__ = AttributeError("x"), ConnectionError("no route")
    final: list[BaseException] = [
        *(NameError("x"), NotImplementedError(), ModuleNotFoundError("x"), SyntaxError("x"), UnboundLocalError("x")),
        *(InvalidArguments("x"), InvalidSetting("x", code="not_callable"), import_failed),
    ]
    retried: list[BaseException] = [
        *(ValueError("x"), KeyError("x"), ConnectionError("x"), TimeoutError(), ImportError("x"), AttributeError("x")),
        *(_raised(_body, None), TypeError("never raised"), unreachable, InvalidSetting("x", code="no_artifact_store")),
    ]
    assert all(map(is_permanent, final))
    assert not any(map(is_permanent, retried))
    assert holdfast.can_retry is can_retry
    for error in final:
        assert Retry().is_final(error)
        assert not Retry(retry_on=(Exception,)).is_final(error)
    for error in retried:
        assert not Retry().is_final(error)
        assert Retry(give_up_on=(Exception,)).is_final(error)
