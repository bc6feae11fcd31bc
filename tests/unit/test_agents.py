"""Agents: definitions are checked, refusals are explained, and their policy overrides that of the kind."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast import Agent, Backoff, Retry
from holdfast.engine.job import JobSpec
from holdfast.engine.retry import GENTLE, PATIENT
from holdfast.features.agents.model import AgentRefusal, Definition, agent_refusal, with_agent_settings

pytestmark = pytest.mark.req("CX-16")

NOW = datetime(2026, 11, 15, 9, 28, 11, 500_000, tzinfo=UTC)
AGENT = Agent(
    tenant="default",
    id="planner",
    name="Planner",
    kind=None,
    max_attempts=None,
    max_crashes=None,
    backoff=None,
    max_payload_bytes=None,
    max_wait=None,
    requires_approval=False,
    disabled_at=None,
    disabled_by=None,
    disabled_reason=None,
    created_at=NOW,
    updated_at=NOW,
    waiting=0,
)
SPEC = JobSpec(id="x", kind="plan", payload="{}", enqueued_by="me", source_system="tests", agent="planner")


def agent(**changes: Any) -> Agent:
    return dataclasses.replace(AGENT, **changes)


@pytest.mark.req("CX-9")
def test_retry_object_sets_whole_policy_and_preset_sets_backoff_only() -> None:
    whole = Definition.of("a", retry=Retry(max_attempts=3, max_crashes=1))
    assert (whole.max_attempts, whole.max_crashes, whole.backoff) == (3, 1, PATIENT)
    partly = Definition.of("a", retry="gentle")
    assert (partly.max_attempts, partly.max_crashes, partly.backoff) == (None, None, GENTLE)
    nothing = Definition.of("a")
    assert (nothing.name, nothing.max_attempts, nothing.max_crashes, nothing.backoff) == ("a", None, None, None)


def test_definition_accepts_size_and_duration_strings() -> None:
    made = Definition.of("a", max_payload="1.5KB", max_wait=timedelta(minutes=2))
    assert (made.max_payload_bytes, made.max_wait) == (1536, 120.0)


@pytest.mark.req("CX-9", "CX-10")
def test_unset_agent_fields_fall_back_to_policy_of_kind() -> None:
    kinds = Retry(max_attempts=9, max_crashes=8, backoff=Backoff(base=7))
    assert agent().policy(kinds) == kinds
    assert agent(max_attempts=1).policy(kinds) == Retry(max_attempts=1, max_crashes=8, backoff=Backoff(base=7))
    assert agent(max_crashes=0).policy(kinds) == Retry(max_attempts=9, max_crashes=0, backoff=Backoff(base=7))
    assert agent(backoff=GENTLE.to_json()).policy(kinds).backoff == GENTLE
    assert agent(backoff={"base": "much"}).policy(kinds).backoff == PATIENT, "written by hand in the database"


def test_objection_names_kind_payload_size_or_disabling() -> None:
    assert agent_refusal(agent(), "plan", 10**9) is None
    assert agent_refusal(agent(kind="plan", max_payload_bytes=10), "plan", 10) is None
    assert agent_refusal(agent(kind="mail"), "plan", 2) == AgentRefusal(
        "agent_kind_mismatch", "agent planner runs jobs of kind mail, not plan"
    )
    assert agent_refusal(agent(max_payload_bytes=10), "plan", 11) == AgentRefusal(
        "agent_payload_limit", "agent planner takes payloads of up to 10 bytes, and this one has 11"
    )
    local = NOW.astimezone(timezone(timedelta(hours=2)))
    disabled = agent(disabled_at=local, disabled_by="ada", disabled_reason="it loops", kind="mail")
    assert agent_refusal(disabled, "plan", 2) == AgentRefusal(
        "agent_disabled", "agent planner was disabled by ada on 2026-11-15T09:28:11Z: it loops"
    )


@pytest.mark.req("CX-9")
def test_policy_given_for_job_overrides_policy_of_agent() -> None:
    strict = agent(max_attempts=1)
    assert with_agent_settings(strict, SPEC, NOW).retry.max_attempts == 1
    given = dataclasses.replace(SPEC, retry=Retry(7), retry_given=True)
    assert with_agent_settings(strict, given, NOW).retry.max_attempts == 7


@pytest.mark.req("DP-9")
def test_max_wait_of_agent_limits_deadline() -> None:
    hasty = agent(max_wait=60.0)

    def deadline(**fields: Any) -> datetime | None:
        return with_agent_settings(hasty, dataclasses.replace(SPEC, **fields), NOW).deadline_at

    assert with_agent_settings(agent(), SPEC, NOW).deadline_at is None
    assert deadline() == NOW + timedelta(seconds=60)
    assert deadline(delay=10.0) == NOW + timedelta(seconds=70)
    assert deadline(run_at=NOW - timedelta(days=1)) == NOW + timedelta(seconds=60)
    assert deadline(deadline_at=NOW) == NOW
    assert deadline(deadline_at=NOW + timedelta(days=1)) == NOW + timedelta(seconds=60)
