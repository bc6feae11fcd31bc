"""Payload rules by tenant and kind: forbidden keys, visibility and size.

Several rules can apply to one job: for its tenant or for all, for its kind or for all, set by an operator or declared
by programs. The strictest value of each option counts, so that no rule can loosen another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypedDict

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.payload import JsonValue, canonical, decode_for_display, path_of
from holdfast.engine.units import Size, in_bytes
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


class RuleOptions(TypedDict, total=False):
    """The options of ``app.payload_rules.set`` and ``PayloadPolicy``."""

    signal_only: bool
    forbidden: Iterable[str] | None
    restricted: bool
    max_bytes: Size | None
    max_result_bytes: Size | None
    store: bool | None
    replaceable: bool | None
    requires_approval: Any
    """True, or the options of ``ctx.approval``."""
    token_only: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPolicy:
    """The payload rules that a kind declares: ``@app.job(rules=PayloadPolicy(signal_only=True, max_bytes="16KB"))``.

    ``signal_only`` refuses payloads with a forbidden key (``forbidden`` replaces the default list). ``restricted``
    hides payload and result from everyone but the handler. ``max_bytes`` and ``max_result_bytes`` limit sizes; with
    ``store`` larger values go to the artifact store instead of being refused. With ``replaceable`` an operator may
    replace the payload of a waiting job. With ``token_only`` only tokens decide the approvals of its jobs.
    """

    signal_only: bool = False
    forbidden: Iterable[str] | None = None
    restricted: bool = False
    max_bytes: Size | None = None
    max_result_bytes: Size | None = None
    store: bool | None = None
    replaceable: bool | None = None
    token_only: bool | None = None

    def __post_init__(self) -> None:
        if self.forbidden is not None and not isinstance(self.forbidden, str):  # frozen, hence object
            object.__setattr__(self, "forbidden", tuple(self.forbidden))
        RuleDraft.of(**self.options())  # raises where the policy is declared

    def options(self) -> RuleOptions:
        return RuleOptions(
            signal_only=self.signal_only,
            forbidden=self.forbidden,
            restricted=self.restricted,
            max_bytes=self.max_bytes,
            max_result_bytes=self.max_result_bytes,
            store=self.store,
            replaceable=self.replaceable,
            token_only=self.token_only,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDraft:
    """One checked rule. ``store``: larger values go to the artifact store; None leaves that to other rules."""

    kind: str = EACH_KIND
    signal_only: bool = False
    forbidden: tuple[str, ...] = FORBIDDEN
    classification: Classification = "safe_metadata"
    max_bytes: int | None = None
    max_result_bytes: int | None = None
    store: bool | None = None
    replaceable: bool | None = None
    requires_approval: dict[str, Any] | None = None
    """Options of the approval that its jobs need before they run (``steps/approvals.py``)."""
    token_only: bool | None = None
    at_most_once: bool | None = None

    @classmethod
    def of(
        cls,
        kind: str = EACH_KIND,
        *,
        signal_only: bool = False,
        forbidden: Iterable[str] | None = None,
        restricted: bool = False,
        max_bytes: Size | None = None,
        max_result_bytes: Size | None = None,
        store: bool | None = None,
        replaceable: bool | None = None,
        requires_approval: dict[str, Any] | None = None,
        token_only: bool | None = None,
        at_most_once: bool | None = None,
    ) -> RuleDraft:
        """Check the options of a rule; ``forbidden`` replaces the default list."""
        if forbidden is not None and not signal_only:
            raise InvalidSetting("forbidden keys need signal_only=True", code="conflicting_options")
        names = FORBIDDEN if forbidden is None else _names(forbidden)
        draft = cls(
            kind=kind if kind == EACH_KIND else check_name(kind, "kind"),
            signal_only=bool(signal_only),
            forbidden=names,
            classification="restricted" if restricted else "safe_metadata",
            max_bytes=_bytes(max_bytes, "max_bytes"),
            max_result_bytes=_bytes(max_result_bytes, "max_result_bytes"),
            store=store,
            replaceable=replaceable,
            requires_approval=requires_approval,
            token_only=token_only,
            at_most_once=at_most_once,
        )
        if not draft.has_effect:
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
    def has_effect(self) -> bool:
        limits = (self.max_bytes, self.max_result_bytes, self.store, self.replaceable)
        options = (*limits, self.requires_approval, self.token_only, self.at_most_once)
        return self.signal_only or self.restricted or any(option is not None for option in options)


@dataclass(frozen=True, slots=True)
class PayloadRule:
    """A stored rule. ``declared_by`` is the program that declares it in its code; empty for an operator's rule."""

    tenant: str
    kind: str
    declared_by: str
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

    def refusal(self, kind: str, payload: str) -> HoldfastError | None:
        """Why a payload (JSON text) is refused, or None. The error names the path of a key, never its value."""
        size = len(payload) if payload.isascii() else len(payload.encode())
        if self.max_bytes is not None and size > self.max_bytes:
            return Refused(
                f"the payload of {kind} has {size:,} bytes; its rule allows {self.max_bytes:,}",
                code="payload_over_limit",
                fix="Pass a reference, or change the rule to store larger payloads (holdfast rules set --store).",
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


def combine(rules: Iterable[PayloadRule | RuleDraft]) -> Effective:
    """The strictest value of each option; of several approvals the one of the first rule (``effective`` sorts them).
    ``store`` and ``replaceable`` need one rule that allows it and none that forbids it."""
    rules = list(rules)
    if not rules:
        return NO_RULE
    asking = next((rule for rule in rules if rule.requires_approval is not None), None)
    return Effective(
        forbidden=frozenset(name for rule in rules if rule.signal_only for name in rule.forbidden),
        restricted=any(rule.classification == "restricted" for rule in rules),
        max_bytes=_smallest(rule.max_bytes for rule in rules),
        max_result_bytes=_smallest(rule.max_result_bytes for rule in rules),
        store=any(rule.store for rule in rules) and not any(rule.store is False for rule in rules),
        replaceable=any(rule.replaceable for rule in rules) and not any(rule.replaceable is False for rule in rules),
        requires_approval=None if asking is None else canonical(asking.requires_approval),
        token_only=any(rule.token_only for rule in rules),
        at_most_once=any(rule.at_most_once for rule in rules),
        approval_by_operator=isinstance(asking, PayloadRule) and not asking.declared_by,
    )


def combined(one: Effective, other: Effective) -> Effective:
    """Combine two combinations. One ``store`` or ``replaceable`` is enough here: each side has already checked that
    none of its own rules forbids it."""
    if one is NO_RULE or other is NO_RULE:
        return other if one is NO_RULE else one
    asking = other if other.approval_by_operator or one.requires_approval is None else one
    return Effective(
        one.forbidden | other.forbidden,
        one.restricted or other.restricted,
        _smallest((one.max_bytes, other.max_bytes)),
        _smallest((one.max_result_bytes, other.max_result_bytes)),
        one.store or other.store,
        one.replaceable or other.replaceable,
        asking.requires_approval,
        one.token_only or other.token_only,
        one.at_most_once or other.at_most_once,
        asking.approval_by_operator,
    )


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
