"""``ctx.approval``: the options of an approval, and its decision with typed form values."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypedDict, TypeVar

from holdfast.engine.hints import check_options
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.approvals.model import Question, plain, values_text
from holdfast.steps.signature import adapter_for, rebuilt

F = TypeVar("F")


class ApprovalOptions(TypedDict, total=False):
    """The options of ``ctx.approval``."""

    data: Any
    approvers: Sequence[str]
    quorum: int
    not_requester: bool
    token_only: bool
    on_deny: Literal["fail", "resume"]
    expires_in: Duration | None
    on_expire: Literal["deny", "approve", "remind"]
    remind_every: Duration | None
    escalate_after: Duration | None
    escalate_to: Sequence[str]


@dataclass(frozen=True, slots=True)
class Word:
    """The decision of one person."""

    person: str
    verdict: str
    how: str
    comment: str | None
    data: Any
    at: datetime


@dataclass(frozen=True, slots=True)
class Decision(Generic[F]):
    """The result of an approval. ``data`` holds the form values that enough people approved."""

    approval_id: str
    approved: bool
    state: str
    decided_at: datetime
    words: tuple[Word, ...]
    data: F

    @property
    def by(self) -> str | None:
        """The person who decided last; None if the approval expired."""
        return self.words[-1].person if self.words else None

    @property
    def how(self) -> str | None:
        return self.words[-1].how if self.words else None

    @property
    def comment(self) -> str | None:
        return self.words[-1].comment if self.words else None


@dataclass(frozen=True, slots=True)
class ApprovalNotice:
    """The argument of an approval notifier: which approval, and why it is called. ``number`` counts the reminders."""

    approval_id: str
    what: Literal["asked", "reminder", "escalated"]
    number: int = 0


def question(summary: str, form: Any, options: ApprovalOptions) -> Question:
    """Check the options of an approval. ``form`` is a type (with pydantic) or a JSON schema."""
    check_options(options, ApprovalOptions.__annotations__)
    return Question(
        summary=summary,
        data=options.get("data"),
        form=schema_of(form),
        approvers=_people(options.get("approvers", ())),
        quorum=options.get("quorum", 1),
        not_requester=bool(options.get("not_requester", False)),
        token_only=bool(options.get("token_only", False)),
        on_deny=options.get("on_deny", "fail"),
        on_expire=options.get("on_expire", "deny"),
        expires_in=_seconds(options.get("expires_in"), "expires_in"),
        remind_every=_seconds(options.get("remind_every"), "remind_every"),
        escalate_after=_seconds(options.get("escalate_after"), "escalate_after"),
        escalate_to=_people(options.get("escalate_to", ())),
    )


def required_approval(required: bool | ApprovalOptions) -> ApprovalOptions | None:
    """The approval that a kind requires before it runs, checked when the kind is declared."""
    if required is False:
        return None
    options = ApprovalOptions() if required is True else required
    if not isinstance(options, dict):
        raise InvalidSetting("requires_approval must be True or options of ctx.approval", code="invalid_approval")
    if options.get("on_deny", "fail") != "fail":
        raise InvalidSetting(
            'a job that was not approved does not run: on_deny="resume" needs a handler',
            code="invalid_approval",
            fix='Ask with ctx.approval(…, on_deny="resume") in the handler.',
        )
    question("Run it", None, options)
    return options


def approval_rule(options: ApprovalOptions | None) -> dict[str, Any] | None:
    """The approval that a kind requires as JSON, for the rules in the database: programs without the code of the kind
    ask for it with these options."""
    if options is None:
        return None
    asked, usual = (question("Run it", None, each).to_json("", "run", None) for each in (options, ApprovalOptions()))
    return {name: value for name, value in asked.items() if value != usual.get(name) and name != "content_hash"}


def check_notifier(function: Callable[..., Any], skip: int) -> None:
    """Check the parameters of an approval notifier: the stores create its jobs with one argument named ``notice``."""
    if [*inspect.signature(function).parameters][skip:] != ["notice"]:
        raise InvalidSetting(
            "an approval notifier takes one argument named notice",
            code="invalid_approval",
            fix="Declare it as def tell(notice: holdfast.ApprovalNotice) -> None.",
        )


def schema_of(form: Any) -> dict[str, Any] | None:
    if form is None or isinstance(form, Mapping):
        return None if form is None else dict(form)
    adapter = adapter_for(form)
    if adapter is None:
        raise InvalidSetting(
            "a form must be a type or a JSON schema",
            code="invalid_approval",
            fix="Pass a model, a dataclass or a TypedDict (needs pydantic), or a JSON schema as a dict.",
        )
    schema: dict[str, Any] = adapter.json_schema()
    return schema


def decision(value: Mapping[str, Any], form: Any) -> Decision[Any]:
    words = tuple(
        Word(w["person"], w["verdict"], w["how"], w["comment"], w["data"], datetime.fromisoformat(w["at"]))
        for w in value["votes"]
    )
    data = _agreed([word for word in {word.person: word for word in words}.values() if word.verdict == "approve"])
    if data is not None and form is not None and not isinstance(form, Mapping):
        data = rebuilt(form, data, "the form of the approval")
    decided_at, approved = datetime.fromisoformat(value["decided_at"]), value["state"] == "approved"
    return Decision(value["approval_id"], approved, value["state"], decided_at, words, data)


def _agreed(approving: Sequence[Word]) -> Any:
    """The values that most people approved, by their last votes; None if as many approved others."""
    people = Counter(values_text(word.data) for word in approving)
    values = [text for text, count in people.items() if count == max(people.values())]
    same = [plain(word.data) for word in approving if [values_text(word.data)] == values]
    return next((data for data in same if data is not None), None)


def _seconds(value: Duration | None, what: str) -> float | None:
    return None if value is None else seconds(value, what)


def _people(people: object) -> tuple[str, ...]:
    # Text is a sequence too, of characters.
    if isinstance(people, str) or not isinstance(people, Sequence):
        raise InvalidSetting("approvers and escalate_to must be lists of people", code="invalid_approval")
    return tuple(people)
