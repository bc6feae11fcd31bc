"""Hypothesis strategies: drafts of jobs from a small set of values so that they collide, and ends of attempts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Literal

from hypothesis import strategies as st

from holdfast.engine.ids import uuid7
from holdfast.engine.job import Dedupe, JobSpec
from holdfast.engine.outcome import Cancelled, Crashed, Failed, Outcome, Paused, Snoozed, Succeeded
from holdfast.engine.retry import EXPONENTIAL, GENTLE, PATIENT, Backoff, Retry
from holdfast.engine.settlement import Ending
from holdfast.engine.steps import Pause, StepEntry
from holdfast.features.agents.model import Definition
from holdfast.features.approvals.model import Question

USUAL = Retry()
START = datetime.fromisoformat("2030-01-31T23:59:50.123456+00:00")

tenants = st.sampled_from(["a", "b"])
scopes = st.sampled_from(["a", "b", "*"])
kinds = st.sampled_from(["mail", "report"])
queues = st.sampled_from(["default", "bulk"])
# 1/3 s is not a whole number of microseconds, and 1.0000005 s lies exactly between two.
delays = st.sampled_from([0.0, 0.29, 1 / 3, 1.0000005, 2.5, 60.0, 86_400.0])
reasons = st.sampled_from([None, "", "  ", "a reason", "ünïcode → 'quoted' \"twice\""])


@dataclass(frozen=True, repr=False)
class Draft:
    """A job to enqueue, described independently of the jobs that exist."""

    kind: str = "mail"
    queue: str = "default"
    payload: str = "{}"
    priority: int = 0
    delay: float | None = None
    after: float | None = None
    deadline: float | None = None
    retry: Retry = USUAL
    given: bool = False
    key: str | None = None
    content: str | None = None
    dedupe: Dedupe = "skip"
    tags: tuple[str, ...] = ()
    agent: str | None = None
    correlation: str | None = None
    parent: Literal["none", "one", "foreign", "unknown"] = "none"
    uses: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Show only values that differ from the defaults, to keep failing examples readable."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        defaults = {each.name: each.default for each in fields(self)}
        return f"Draft({', '.join(f'{k}={v!r}' for k, v in values.items() if v != defaults[k])})"

    def spec(self, number: int, now: datetime, parent: str | None) -> JobSpec:
        same = ("kind", "payload", "queue", "priority", "delay", "retry", "key", "tags", "agent", "uses")
        return JobSpec(
            **{name: getattr(self, name) for name in same},
            id=job_id(number, now),
            enqueued_by=f"user-{number % 2}",
            source_system="model",
            run_at=_from(now, self.after),
            deadline_at=_from(now, self.deadline),
            retry_given=self.given,
            content_key=self.content,
            dedupe=self.dedupe if self.content else None,
            correlation_id=self.correlation,
            causation_id=self.correlation,
            parent_id=parent,
            workflow_id=job_id(10**6, now) if self.correlation else None,
            external_ref=self.agent,
        )


def job_id(number: int, now: datetime) -> str:
    """Make an id. Ids of one millisecond sort randomly, as those of several processes do: order must not follow ids."""
    noise = hashlib.sha256(str(number).encode()).digest()[:10]
    return str(uuid7(int(now.timestamp() * 1000), noise))


def _from(now: datetime, offset: float | None) -> datetime | None:
    return None if offset is None else now + timedelta(seconds=offset)


policies = st.builds(
    Retry,
    max_attempts=st.sampled_from([1, 2, 2, 3]),
    backoff=st.sampled_from([PATIENT, EXPONENTIAL, GENTLE, Backoff(base=0.29, factor=3.0, jitter=True)]),
    max_crashes=st.integers(0, 2),
)
# Two spellings of one document, and two other documents.
payloads = st.sampled_from(['{"a": 1, "b": [2, "é"]}', '{"b":[2,"é"],"a":1}', "{}", '[1.5, null, {"x": {}}]'])

drafts = st.builds(
    Draft,
    kind=kinds,
    queue=queues,
    payload=payloads,
    priority=st.sampled_from([0, 0, 0, 5, -32768, 32767]),
    delay=st.none() | st.none() | delays,
    after=st.none() | st.none() | st.sampled_from([-5.0, 0.0, 0.000001, 10.0]),
    deadline=st.none() | st.sampled_from([-1.0, 0.0, 1.0, 20.0]),
    retry=policies,
    given=st.booleans(),
    key=st.sampled_from([None, None, "k1", "k2"]),
    content=st.sampled_from([None, "c1", "c1", "c2"]),
    dedupe=st.sampled_from(["skip", "coalesce"]),
    tags=st.sampled_from([(), ("red",), ("red", "blue"), ("blue", "blue", "ä b")]),
    agent=st.sampled_from([None, "planner"]),
    correlation=st.sampled_from([None, "order-7"]),
    parent=st.sampled_from(["none", "none", "none", "one", "one", "foreign", "unknown"]),
    uses=st.sampled_from([(), (), ("key:c1",), ("key:c1", "resource:gpu"), ("resource:gpu",), ("key:c2",)]),
)
# Most jobs are plain, without keys, times and parents: these are not refused or delayed.
plain_drafts = drafts.map(
    lambda draft: replace(draft, delay=None, after=None, deadline=None, key=None, content=None, parent="none")
)

definitions = st.builds(
    Definition,
    id=st.just("planner"),
    name=st.sampled_from(["Planner", "ünïcode → 'quoted'"]),
    kind=st.sampled_from([None, None, "mail"]),
    max_attempts=st.sampled_from([None, 1, 2]),
    max_crashes=st.sampled_from([None, 0, 1]),
    backoff=st.sampled_from([None, PATIENT, EXPONENTIAL, GENTLE]),
    max_payload_bytes=st.sampled_from([None, None, 20]),
    max_wait=st.sampled_from([None, None, 1 / 3, 60.0]),
    requires_approval=st.booleans(),
)

# `worker_lost` and `process_died` are codes of Holdfast; a handler may still use them.
codes = st.sampled_from(["boom", "worker_lost", "process_died", "deadline_passed"])
notes = st.sampled_from([None, None, {"exit_code": 3, "log": "file:///x → 'y'"}])
failures = st.builds(
    Failed,
    codes,
    st.just("it broke → 'so'"),
    traceback=st.sampled_from([None, "Traceback …"]),
    after=st.none() | delays,
    final=st.sampled_from([False, False, True]),
    backoff=st.sampled_from([None, None, GENTLE]),
    note=notes,
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded, st.sampled_from([None, "null", '{"ok": true}', "[]"]), note=notes),
    failures,
    failures,
    st.builds(Crashed, codes, st.just("killed by signal 11"), note=notes),
    st.builds(Snoozed, delays, st.sampled_from([None, "not yet"])),
    st.builds(Cancelled, st.sampled_from([None, "not wanted"])),
)
endings: st.SearchStrategy[Ending] = st.sampled_from(
    ["succeeded", "retry", "dead_letter", "fail", "crash", "snooze", "cancel"]
)

# -- waits of handlers ---------------------------------------------------------------------------------------------

# Each durable call has a fixed step number, so that a number always means the same call.
EVENTS = {"paid": 2, "shipped": 3}
APPROVALS = {"release": 4, "refund": 6}


@dataclass(frozen=True)
class Wait:
    """A reason to suspend an attempt, described independently of the jobs that exist."""

    kind: Literal["sleep", "event", "step", "ask"]
    name: str
    delay: float | None
    offset: float | None
    match: tuple[tuple[str, object], ...] = ()
    since: float = 0.0
    patch: bool = False
    question: tuple[tuple[str, object], ...] = ()

    def outcome(self, now: datetime, approval_id: str) -> Paused:
        steps = [StepEntry(7, "new way", "patch", took=0.5).to_json()] if self.patch else []
        return Paused(self._pause(now, approval_id).to_json(), steps)

    def _pause(self, now: datetime, approval_id: str) -> Pause:
        until = _from(now, self.offset)
        delay = None if until is not None else self.delay
        match self.kind:
            case "sleep":
                return Pause(1, "nap", "sleep", delay=delay or 0.0, until=until)
            case "event":
                wanted = dict(self.match)
                return Pause(
                    EVENTS[self.name], self.name, "event", delay=delay, until=until, wanted=wanted, since=self.since
                )
            case "step":
                return Pause(5, "charge", "step", delay=delay or 0.0, tries=2, error={"type": "x", "message": "busy"})
            case "ask":
                name = "release" if self.name == "paid" else "refund"
                question = Question(**{"summary": "May it?", **dict(self.question)})  # type: ignore[arg-type]
                return Pause(APPROVALS[name], name, "approval", approval=question.to_json(approval_id, name, None))


matches = st.sampled_from([(), (), (("order", 7),), (("order", None),), (("order", 7), ("shop", "a"))])
event_data = st.sampled_from(['{"order": 7}', '{"order": 7.0, "shop": "a"}', "{}", '{"order": null}', '{"order": "7"}'])
people = st.sampled_from(["ada", "bob", "eve", "user-0", "user-1", "", None])
questions = st.tuples(
    st.sampled_from([(), (("approvers", ("ada", "bob")), ("quorum", 2)), (("approvers", ("ada",)),)]),
    st.sampled_from([(), (("escalate_after", 60.0), ("escalate_to", ("eve",)))]),
    st.sampled_from([(), (("not_requester", True),)]),
    st.sampled_from([(), (("on_deny", "resume"),)]),
    st.sampled_from(
        [
            *((), (("expires_in", 60.0),), (("expires_in", 2.5), ("on_expire", "remind"))),
            *((("expires_in", 2.5), ("on_expire", "approve")), (("form", {"type": "object", "required": ["limit"]}),)),
        ]
    ),
    st.sampled_from([(), (("remind_every", 31.0),)]),
).map(lambda parts: tuple(option for part in parts for option in part))
waits = st.builds(
    Wait,
    kind=st.sampled_from(["ask", "event", "ask", "event", "sleep", "step"]),
    name=st.sampled_from(sorted(EVENTS)),
    delay=st.none() | delays,
    offset=st.sampled_from([None, None, -1.0, 3.0]),
    match=matches,
    since=st.sampled_from([0.0, 0.0, 100.0]),
    patch=st.booleans(),
    question=questions,
)
