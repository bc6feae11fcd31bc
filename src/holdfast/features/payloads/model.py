"""Payload rules by tenant and kind: forbidden keys, visibility and size.

Several rules can apply to one job: for its tenant or for all, for its kind or for all, set by an operator or declared
by programs. The strictest value of each option counts, so that no rule can loosen another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypedDict, Unpack

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.payload import JsonValue, canonical, decode_for_display, path_of
from holdfast.engine.units import Size, in_bytes, size_in_words
from holdfast.errors import HoldfastError, InvalidSetting, Refused

EACH_KIND: Final = "*"
FORBIDDEN: Final = (
    *("body", "content", "raw", "vector", "embedding"),
    *("secret", "token", "password", "ssn", "personal_data"),
)
RESERVED_KEYS: Final = frozenset({"$holdfast", "key", "sealed", "stored"})
MAX_KEYS: Final = 200
MIN_BYTES: Final = 256
"""A lower limit would refuse jobs that the database itself enqueues, such as the notice of an approval."""
MAX_BYTES: Final = 2**31 - 1
HIDDEN: Final = "[restricted]"
"""Shown to readers in place of a restricted payload."""
WITHHELD: Final = "what is said of a restricted job's failure is not kept"
"""Stored in place of the error messages of a restricted job: the ledger is sealed, so they could not be removed
later."""

Classification = Literal["safe_metadata", "restricted"]


SIZES: Final = {"max_bytes": "payload", "max_result_bytes": "result"}
"""Settings that limit a size, and what they limit. Of several rules, the smallest counts."""


class PolicyOptions(TypedDict, total=False):
    """The rules for payloads and results of a kind."""

    signal_only: Annotated[bool, Help("Refuse payloads with forbidden keys, at any depth.", option="--signal-only")]
    forbidden: Annotated[
        Iterable[str] | None,
        Help(
            "Forbidden key, replaces the default list of signal-only rules; repeatable.",
            "KEY",
            most=100,
            option="--forbid",
            wire=list[str] | None,
        ),
    ]
    restricted: Annotated[bool, Help("Never show or log the payload.", option="--restricted")]
    max_bytes: Annotated[Size | None, Help("Maximum payload size: 4096, 64KB.", "SIZE", longest=50)]
    max_result_bytes: Annotated[Size | None, Help("Maximum result size: 4096, 64KB.", "SIZE", longest=50)]
    store: Annotated[
        bool | None, Help("Move larger values to the artifact store, or never.", option="--store/--no-store")
    ]
    replaceable: Annotated[
        bool | None,
        Help("Let operators replace the payload of a waiting job.", option="--replaceable/--not-replaceable"),
    ]
    token_only: Annotated[
        bool | None, Help("Only tokens decide the approvals of its jobs.", option="--token-only/--no-token-only")
    ]


class RuleOptions(PolicyOptions, total=False):
    """The options of ``app.payload_rules.set``."""

    requires_approval: Annotated[
        Any,
        Help(
            "Its jobs wait for an approval before they run: true, or options of the approval.",
            wire=bool | dict[str, Any] | None,
            cli=False,
        ),
    ]


class PayloadPolicy:
    """The payload rules that a kind declares: ``@app.job(payload_rules=PayloadPolicy(signal_only=True))``.

    ``signal_only`` refuses payloads with a forbidden key (``forbidden`` replaces the default list). ``restricted``
    hides payload and result from everyone but the handler. ``max_bytes`` and ``max_result_bytes`` limit sizes; with
    ``store`` larger values go to the artifact store instead of being refused. With ``replaceable`` an operator may
    replace the payload of a waiting job. With ``token_only`` only tokens decide the approvals of its jobs.
    """

    def __init__(self, **options: Unpack[PolicyOptions]) -> None:
        check_options(options, PolicyOptions.__annotations__)
        RuleDraft.of(**options)  # raises where the policy is declared
        self.options = options

    def __repr__(self) -> str:
        return f"PayloadPolicy({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"


@dataclass(frozen=True, slots=True)
class RuleDraft:
    """One checked rule. ``store``: larger values go to the artifact store; None leaves that to other rules.
    ``requires_approval`` has the options of the approval that its jobs need (``steps/approvals.py``)."""

    kind: str
    signal_only: bool
    forbidden: tuple[str, ...]
    classification: Classification
    max_bytes: int | None
    max_result_bytes: int | None
    store: bool | None
    replaceable: bool | None
    requires_approval: dict[str, Any] | None
    token_only: bool | None
    at_most_once: bool | None

    @staticmethod
    def of(kind: str = EACH_KIND, **options: Any) -> RuleDraft:
        """Check the options of a rule; ``forbidden`` replaces the default list."""
        forbidden, signal_only = options.get("forbidden"), bool(options.get("signal_only"))
        if forbidden is not None and not signal_only:
            raise InvalidSetting("forbidden keys need signal_only=True", code="conflicting_options")
        checked: dict[str, Any] = {field.name: options.get(field.name) for field in fields(RuleDraft)}
        checked |= {name: _bytes(options.get(name), name) for name in SIZES}
        checked |= {
            "kind": kind if kind == EACH_KIND else check_name(kind, "kind"),
            "signal_only": signal_only,
            "forbidden": FORBIDDEN if forbidden is None else _names(forbidden),
            "classification": "restricted" if options.get("restricted") else "safe_metadata",
        }
        draft = RuleDraft(**checked)
        if not draft.settings:
            raise InvalidSetting(
                "the rule is empty",
                code="empty_rule",
                fix="Set at least one option, such as signal_only or restricted.",
            )
        return draft

    @property
    def restricted(self) -> bool:
        return self.classification == "restricted"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that have an effect."""
        given = {name: getattr(self, name) for name in OPTIONAL}
        flags = {name: True for name in ("signal_only", "restricted") if getattr(self, name)}
        return flags | {name: value for name, value in given.items() if value is not None}

    @property
    def says(self) -> str:
        """The settings in words."""
        words = {
            **{name: f"{what} up to {size_in_words(getattr(self, name) or 0)}" for name, what in SIZES.items()},
            "store": "larger is stored" if self.store else "nothing is stored",
            "replaceable": "replaceable" if self.replaceable else "not replaceable",
            "requires_approval": "needs approval",
            "token_only": "approvals by token only" if self.token_only else "approvals not only by token",
        }
        return ", ".join(words.get(name, name.replace("_", " ")) for name in self.settings)


SETTINGS: Final = tuple(field.name for field in fields(RuleDraft) if field.name != "kind")
OPTIONAL: Final = tuple(name for name in SETTINGS if name not in ("signal_only", "forbidden", "classification"))
"""Settings that are None if a rule does not have them."""


@dataclass(frozen=True, slots=True)
class PayloadRule(RuleDraft):
    """A stored rule. ``declared_by`` is the program that declares it in its code; empty for an operator's rule."""

    tenant: str
    declared_by: str
    set_by: str
    created_at: datetime
    updated_at: datetime

    def applies_to(self, tenant: str, kind: str) -> bool:
        return self.tenant in (tenant, EVERY_TENANT) and self.kind in (kind, EACH_KIND)


@dataclass(frozen=True, slots=True)
class Effective:
    """All rules for one tenant and kind, combined."""

    forbidden: frozenset[str] = frozenset()
    restricted: bool = False
    max_bytes: int | None = None
    max_result_bytes: int | None = None
    store: bool = False
    replaceable: bool = False
    requires_approval: str | None = None
    """Options of the approval before its jobs run, as JSON text."""
    token_only: bool = False
    at_most_once: bool = False
    approval_by_operator: bool = False
    """Whether an operator set ``requires_approval``, and not the code of a program."""

    def limit_of(self, what: str) -> int | None:
        """The maximum size of a payload or a result."""
        return self.max_bytes if what == "payload" else self.max_result_bytes

    def refusal(self, kind: str, payload: str) -> HoldfastError | None:
        """Why a payload (JSON text) is refused, or None. The error names the path of a key, never its value."""
        size = len(payload) if payload.isascii() else len(payload.encode())
        if self.max_bytes is not None and size > self.max_bytes:
            return Refused(
                f"the payload of {kind} has {size:,} bytes; its rule allows {self.max_bytes:,}",
                code="payload_over_limit",
                fix="Pass a reference, or store larger payloads: holdfast payload-rules set --store.",
            )
        path = forbidden_at(decode_for_display(payload), self.forbidden) if self.forbidden else None
        if path is None:
            return None
        return Refused(
            f"the payload of {kind} has a forbidden key at {path}: this kind is signal-only",
            code="payload_forbidden",
            fix="Store the data elsewhere and pass a reference: using(source_ref=…).",
        )


NO_RULE: Final = Effective()


def combine(rules: Iterable[RuleDraft]) -> Effective:
    """The strictest value of each option; of several approvals the one of the first rule (``effective`` sorts them).
    ``store`` and ``replaceable`` need one rule that allows it and none that forbids it."""
    rules = list(rules)
    if not rules:
        return NO_RULE
    asking = next((rule for rule in rules if rule.requires_approval is not None), None)
    given = {name: [getattr(rule, name) for rule in rules] for name in OPTIONAL}
    values: dict[str, Any] = {name: any(each) for name, each in given.items()}
    values |= {name: _smallest(given[name]) for name in SIZES}
    values |= {name: values[name] and False not in given[name] for name in ("store", "replaceable")}
    values["requires_approval"] = None if asking is None else canonical(asking.requires_approval)
    return Effective(
        forbidden=frozenset(name for rule in rules if rule.signal_only for name in rule.forbidden),
        restricted=any(rule.restricted for rule in rules),
        approval_by_operator=isinstance(asking, PayloadRule) and not asking.declared_by,
        **values,
    )


def combined(one: Effective, other: Effective) -> Effective:
    """Combine two combinations. One ``store`` or ``replaceable`` is enough here: each side has already checked that
    none of its own rules forbids it."""
    if one is NO_RULE or other is NO_RULE:
        return other if one is NO_RULE else one
    asking = other if other.approval_by_operator or one.requires_approval is None else one
    both = {field.name: (getattr(one, field.name), getattr(other, field.name)) for field in fields(Effective)}
    merged: dict[str, Any] = {
        name: _smallest(values) if name in SIZES else values[0] or values[1] for name, values in both.items()
    }
    merged |= {
        "forbidden": one.forbidden | other.forbidden,
        "requires_approval": asking.requires_approval,
        "approval_by_operator": asking.approval_by_operator,
    }
    return Effective(**merged)


def _smallest(limits: Iterable[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def effective(rules: Iterable[PayloadRule], tenant: str, kind: str) -> Effective:
    """The rules that apply to jobs of this tenant and kind, combined."""
    found: list[PayloadRule] = sorted((rule for rule in rules if rule.applies_to(tenant, kind)), key=_precedence)
    return combine(found)


def _precedence(rule: PayloadRule) -> tuple[bool, bool, bool, str]:
    """The order in which approvals count, as in ``rule_for`` of the database: those of operators before those of code,
    then those of one tenant, then those of one kind."""
    return rule.declared_by != "", rule.tenant == EVERY_TENANT, rule.kind == EACH_KIND, rule.declared_by


def shown_payload(rules: Iterable[PayloadRule], tenant: str, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The payload of a template or a schedule as readers see it."""
    return {HIDDEN: True} if payload and effective(rules, tenant, kind).restricted else payload


def forbidden_at(value: JsonValue, names: frozenset[str]) -> str | None:
    """The path of the first of these keys, such as ``$.items[3].password``, ignoring case; None if there is none."""
    stack: list[tuple[Any, Any]] = [(value, None)]
    while stack:
        container, trail = stack.pop()
        if isinstance(container, dict):
            for key, item in container.items():
                if key.lower() in names:
                    return path_of((trail, key))
                if isinstance(item, dict | list):
                    stack.append((item, (trail, key)))
        elif isinstance(container, list):
            stack += [(item, (trail, n)) for n, item in enumerate(container) if isinstance(item, dict | list)]
    return None


def _names(forbidden: Iterable[str]) -> tuple[str, ...]:
    if isinstance(forbidden, str):
        raise InvalidSetting("forbidden keys must be a list of text", code="invalid_name")
    names = tuple(dict.fromkeys(check_name(name, "forbidden key").lower() for name in forbidden))
    if not 0 < len(names) <= MAX_KEYS or any(set(name) & set('"\\') for name in names):
        raise InvalidSetting(
            f"forbidden keys must be 1 to {MAX_KEYS} names without quotes and backslashes", code="invalid_name"
        )
    if RESERVED_KEYS & set(names):
        raise InvalidSetting(
            f"{', '.join(sorted(RESERVED_KEYS))} are reserved keys of sealed and stored payloads", code="invalid_name"
        )
    return names


def _bytes(size: Size | None, what: str) -> int | None:
    if size is None:
        return None
    limit = in_bytes(size, what, least=MIN_BYTES)
    if limit > MAX_BYTES:
        raise InvalidSetting(f"{what} must be at most {MAX_BYTES:,} bytes", code="invalid_size")
    return limit
