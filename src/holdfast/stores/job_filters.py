"""The filters of job lists, each declared once.

Both stores' queries (``stores/job_reads.py``), the parameters of the HTTP API, the options of the command line, the
qualifiers of searches and the arguments of the remote client are made from this table. A new filter is a line here, a
field of ``JobFilter`` and ``JobsWanted`` (``stores/requests.py``), and an argument of the SQL functions ``list_jobs``
and ``is_wanted``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.engine.ids import parse_id
from holdfast.engine.job import Job
from holdfast.engine.names import check_name
from holdfast.engine.states import State
from holdfast.engine.times import instant
from holdfast.engine.trace import plain_tags
from holdfast.errors import InvalidSetting

Values = Literal["text", "texts", "id", "number", "time", "state"]
MAX_TAGS: Final = 20
MIN_PREFIX: Final = 8
"""Characters of a worker's id that identify it."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on jobs.

    ``table`` and ``column`` say where it is stored: the index of the table that begins with the tenant and the column
    and ends with the job's id finds a page of jobs.
    """

    name: str
    """The argument in Python and the field of ``JobFilter``."""
    table: str
    column: str
    help: str
    metavar: str = "NAME"
    values: Values = "text"
    word: str = ""
    """The qualifier in a search, and the option of the command line; by default the name."""
    parameter: str = ""
    """The parameter of the HTTP API; by default the name."""
    field: str = ""
    """The field of ``Job`` that it compares; by default the name."""

    @property
    def qualifier(self) -> str:
        return self.word or self.name

    @property
    def option(self) -> str:
        return f"--{self.qualifier.replace('_', '-')}"

    @property
    def query(self) -> str:
        return self.parameter or self.name

    def check(self, value: Any) -> Any:
        """The value in the form that the stores compare; ``InvalidSetting`` or ``InvalidInput`` if it has none."""
        return _CHECKS[self.values](value, self.name)

    def holds(self, job: Job, value: Any) -> bool:
        """Whether a job passes, as both stores decide it."""
        special = _HOLDS.get(self.name)
        return getattr(job, self.field or self.name) == value if special is None else special(job, value)


def _texts(value: Any, name: str) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, Sequence | set | frozenset) or not 1 <= len(given) <= MAX_TAGS:
        raise InvalidSetting(f"{name} takes a tag or a list of 1 to {MAX_TAGS} tags", code="invalid_name")
    return tuple(dict.fromkeys(check_name(each, name, limit=255) for each in given))


def _state(value: Any, name: str) -> State:
    try:
        return State(value)
    except ValueError:
        raise InvalidSetting(f"there is no state {value!r}: {', '.join(State)}", code="unknown_state") from None


def _number(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InvalidSetting(f"{name} must be a number", code="invalid_setting")
    return value


_CHECKS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "text": lambda value, name: check_name(value, name, limit=255),
    "texts": _texts,
    "id": lambda value, name: parse_id(value),
    "number": _number,
    "time": lambda value, name: instant(value, name),
    "state": _state,
}

ID_PREFIX = re.compile(rf"[0-9a-f-]{{{MIN_PREFIX},36}}")


def tagged(job: Job, tag: str) -> bool:
    """``name:*`` stands for the label ``name`` with any value."""
    tags = plain_tags(job.tags)
    return tag in tags or any(f"{each.partition(':')[0]}:*" == tag for each in tags if ":" in each)


def _ran(job: Job, worker: str) -> bool:
    if job.worker is None or job.worker == worker:
        return job.worker == worker
    return ID_PREFIX.fullmatch(worker) is not None and job.worker.startswith(f"worker {worker}")


_HOLDS: Final[Mapping[str, Callable[[Job, Any], bool]]] = {
    "tag": lambda job, tags: all(tagged(job, tag) for tag in tags),
    "any_tag": lambda job, tags: any(tagged(job, tag) for tag in tags),
    "limit_key": lambda job, key: f"key:{key}" in (job.uses or ()),
    "worker": _ran,
    "since": lambda job, moment: job.created_at >= moment,
    "until": lambda job, moment: job.created_at < moment,
}

FILTERS: Final = (
    Filter("state", "job_state", "state", f"Only jobs in this state: {', '.join(State)}.", "STATE", "state"),
    Filter("kind", "job", "kind", "Only jobs of this kind.", "KIND"),
    Filter("domain", "registered_kind", "domain", "Only jobs whose kind is registered with this domain."),
    Filter("queue", "job", "queue", "Only jobs in this queue."),
    Filter("agent", "job", "agent", "Only jobs of this agent."),
    Filter("executor", "job", "executor", "Only jobs for this executor label.", "LABEL"),
    Filter("worker", "event", "actor", "Only jobs that this worker has or ran last: its id or name.", "ID"),
    Filter("tag", "job_tag", "tag", "Only jobs with this tag, or customer:*; repeatable.", "TAG", "texts"),
    Filter("any_tag", "job_tag", "tag", "Only jobs with one of these tags; repeatable.", "TAG", "texts"),
    Filter("key", "idempotency", "key", "Only the job with this idempotency key.", "TEXT", field="idempotency_key"),
    Filter("limit_key", "job_tag", "tag", "Only jobs that count against this limit key.", "TEXT"),
    Filter("external_ref", "job", "external_ref", "Only jobs with this external reference.", "TEXT"),
    Filter(
        "correlation_id", "job", "correlation_id", "Only jobs with this correlation id.", "TEXT", word="correlation"
    ),
    Filter("parent_id", "job", "parent_id", "Only children of this job.", "ID", "id", "parent"),
    Filter("workflow_id", "job", "workflow_id", "Only jobs of this workflow.", "ID", "id", "workflow"),
    Filter("part", "node", "part", "Only jobs in this group or sub-workflow of a workflow."),
    Filter("template", "made_from", "template", "Only jobs made from this template."),
    Filter("template_version", "made_from", "template_version", "Only this version of the template.", "N", "number"),
    Filter("schedule", "made_from", "schedule", "Only jobs of this schedule."),
    Filter("scheduled_for", "made_from", "due_at", "Only jobs that a schedule made for this time.", "TIME", "time"),
    Filter(
        "fingerprint",
        "dead_letter",
        "fingerprint",
        "Only open dead letters of this group.",
        "ID",
        word="group",
        parameter="group",
    ),
    Filter("since", "job", "id", "Enqueued since: 1h, or a time.", "TIME", "time"),
    Filter("until", "job", "id", "Enqueued before: 1h, or a time.", "TIME", "time"),
)
BY_NAME: Final[Mapping[str, Filter]] = {each.name: each for each in FILTERS}
BY_WORD: Final[Mapping[str, Filter]] = {each.qualifier: each for each in FILTERS}


def checked(options: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The options that are given, in the form that the stores compare."""
    if unknown := options.keys() - known:
        raise InvalidSetting(f"jobs cannot be selected by {', '.join(sorted(unknown))}", code="unknown_option")
    given = {name: value for name, value in options.items() if value is not None}
    if "template_version" in given and "template" not in given:
        raise InvalidSetting("template_version needs template", code="conflicting_options")
    return {name: BY_NAME[name].check(value) if name in BY_NAME else value for name, value in given.items()}
