"""`decide` turns the outcome of an attempt into a settlement of its job."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from holdfast.engine.job import Claim
from holdfast.engine.outcome import Cancelled, Failed, Snoozed
from holdfast.engine.retry import fixed
from holdfast.engine.settlement import decide, hand_back

CLAIM = Claim(
    id="01a1de74-eb8c-70f1-843b-cac5f6817387",
    lease="lease",
    attempt=1,
    tenant="a",
    kind="k",
    queue="q",
    payload="{}",
    retries=0,
    crashes=0,
    max_attempts=3,
    max_crashes=3,
    backoff=None,
    priority=0,
    position=100,
    deadline_at=None,
    created_at=datetime.now(UTC),
    correlation_id=None,
    parent_id=None,
    workflow_id=None,
    agent=None,
    tags=(),
)


@pytest.mark.req("CX-9")
def test_delay_comes_from_request_then_backoff_of_failure_then_job() -> None:
    claim = replace(CLAIM, backoff=fixed(7).to_json())
    assert decide(claim, Failed("x", "y"), 1.0).delay == 7
    assert decide(claim, Failed("x", "y", backoff=fixed(9)), 1.0).delay == 9
    assert decide(claim, Failed("x", "y", after=3.0, backoff=fixed(9)), 1.0).delay == 3


@pytest.mark.req("CX-9", "JF-5")
def test_requested_retry_counts_toward_the_limit() -> None:
    requested = Failed("retry_asked", "busy", after=30.0)
    endings = [decide(replace(CLAIM, retries=retries), requested, 0.5).ending for retries in range(3)]
    assert endings == ["retry", "retry", "dead_letter"]


@pytest.mark.req("CX-11")
@pytest.mark.parametrize("reason", [None, "not wanted"])
def test_cancel_by_handler_is_noted_with_reason(reason: str | None) -> None:
    settlement = decide(CLAIM, Cancelled(reason), 0.5)
    assert (settlement.ending, settlement.code) == ("cancel", None)
    assert settlement.note == {"by": "handler"} | ({"reason": reason} if reason else {})


@pytest.mark.req("SC-7")
def test_interrupted_job_without_crash_allowance_is_dead_lettered() -> None:
    assert hand_back(CLAIM) == Snoozed(0.0, "worker_stopped")
    for outcome in (hand_back(replace(CLAIM, max_crashes=0)), hand_back(CLAIM, at_most_once=True)):
        assert isinstance(outcome, Failed)
        assert (outcome.code, outcome.final) == ("interrupted", True)
        assert decide(CLAIM, outcome, 0.5).ending == "dead_letter"
