"""Registered kinds and event types, and the policies of a deployment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypedDict, get_args, get_type_hints

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.job import JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.payload import encode
from holdfast.errors import InvalidSetting, Refused

Unknown = Literal["accept", "warn", "refuse"]
Empty = Literal["everyone", "nobody"]
Registry = Literal["kind", "agent", "event type"]

BUILT_IN: Final = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "connector.")
    for name in ("http.request", "webhook.deliver", "report.generate")
)
"""Kinds that every worker has, which need no registration."""
SCHEMA_LIMIT: Final = 65_536
TEXT_LIMIT: Final = 1_000
NAME_LIMIT: Final = 255


@dataclass(frozen=True, slots=True)
class RegisteredKind:
    """A kind that is registered in the deployment."""

    name: str
    description: str | None
    set_by: str
    set_at: datetime
    domain: str | None = None
    """The domain that its jobs belong to."""


@dataclass(frozen=True, slots=True)
class EventType:
    """A type of event that applications send: the domain it belongs to, and the JSON Schema of its data."""

    name: str
    domain: str | None
    schema: dict[str, Any] | None
    description: str | None
    set_by: str
    set_at: datetime


@dataclass(frozen=True, slots=True)
class UnregisteredName:
    """A name that was accepted with a warning, and when it was first seen."""

    tenant: str
    registry: str
    name: str
    first_at: datetime


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a deployment; ``PolicyOptions`` explains each."""

    unknown_kinds: Unknown = "accept"
    unknown_agents: Unknown = "accept"
    unknown_event_types: Unknown = "accept"
    empty_executors: Empty = "everyone"
    tenant_required: bool = False
    pending_includes_running: bool = False
    key_required: tuple[str, ...] = ()
    executor_required: tuple[str, ...] = ()
    agent_required: tuple[str, ...] = ()


_UNKNOWN: Final = "accept, warn or refuse"
_SWITCH: Final = "true or false"
_SCOPES: Final = "*, or tenants and kinds (tenant:acme,kind:pay), or nothing"
_BOUNDS: Final[dict[str, Any]] = {"longest": 200, "most": 1_000, "example": ["tenant:acme", "kind:pay"]}


class PolicyOptions(TypedDict, total=False):
    """The policies to change; omitted ones do not change."""

    unknown_kinds: Annotated[Unknown, Help("Jobs of kinds that are not registered.", _UNKNOWN)]
    unknown_agents: Annotated[Unknown, Help("Jobs of agents that are not registered.", _UNKNOWN)]
    unknown_event_types: Annotated[Unknown, Help("Events of types that are not registered.", _UNKNOWN)]
    empty_executors: Annotated[Empty, Help("Who may run jobs while no executor is listed.", "everyone or nobody")]
    tenant_required: Annotated[
        bool, Help("Refuse jobs of the tenant `default`: it means that no tenant was given.", _SWITCH)
    ]
    pending_includes_running: Annotated[bool, Help("Count running jobs against a tenant's `max_pending`.", _SWITCH)]
    key_required: Annotated[Sequence[str], Help("Jobs that need an idempotency key.", _SCOPES, **_BOUNDS)]
    executor_required: Annotated[Sequence[str], Help("Jobs that need an executor.", _SCOPES, **_BOUNDS)]
    agent_required: Annotated[Sequence[str], Help("Jobs that need an agent.", _SCOPES, **_BOUNDS)]


_HINTS: Final = get_type_hints(PolicyOptions)


_REQUIRED: Final = {"key_required": "key", "executor_required": "executor", "agent_required": "agent"}
"""Policies about facts that jobs must have, and the fact of each."""


def required_of(policies: Mapping[str, Any]) -> list[str]:
    """The requirements as one list, as the database keeps them: ``key kind:pay``."""
    return sorted(f"{fact} {scope}" for name, fact in _REQUIRED.items() for scope in policies[name])


def scopes_of(required: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The policies from that list."""
    return {
        name: tuple(entry.removeprefix(f"{fact} ") for entry in required if entry.startswith(f"{fact} "))
        for name, fact in _REQUIRED.items()
    }


def lacking(spec: JobSpec, tenant: str, required: Sequence[str]) -> Refused | None:
    """Why a job is refused that lacks a required fact; built-in kinds need none."""
    values = {"key": spec.key, "executor": spec.executor, "agent": spec.agent}
    for name, fact in _REQUIRED.items():
        scopes = {f"{fact} {scope}" for scope in ("*", f"tenant:{tenant}", f"kind:{spec.kind}")}
        if values[fact] is None and spec.kind not in BUILT_IN and scopes & {*required}:
            what = "an idempotency key" if fact == "key" else f"an {fact}"
            return Refused(f"jobs of kind {spec.kind} in tenant {tenant} need {what}", code=name)
    return None


def _scopes(name: str, given: object) -> tuple[str, ...]:
    scopes = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(scope, str) and re.fullmatch(r"\*|(tenant|kind):.+", scope) for scope in scopes):
        raise InvalidSetting(
            f"{name} must list tenants and kinds", code="invalid_policy", fix="Write *, tenant:NAME or kind:NAME."
        )
    return tuple(sorted({str(scope) for scope in scopes}))


def check_policies(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options and return them."""
    check_options(options, PolicyOptions.__annotations__)
    return {name: (_scopes if name in _REQUIRED else _choice)(name, value) for name, value in options.items()}


def _choice(name: str, value: object) -> object:
    allowed = (True, False) if _HINTS[name] is bool else get_args(_HINTS[name])
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
        shown = ", ".join(str(choice).lower() if isinstance(choice, bool) else choice for choice in allowed)
        raise InvalidSetting(f"{name} must be one of {shown}, not {value!r}", code="invalid_policy")
    return value


@dataclass(frozen=True, slots=True)
class EventTypeDraft:
    """A checked event type that is about to be registered."""

    name: str
    domain: str | None = None
    schema: str | None = None
    """JSON text."""
    description: str | None = None

    @classmethod
    def of(
        cls, name: str, domain: str | None, schema: Mapping[str, Any] | None, description: str | None
    ) -> EventTypeDraft:
        if schema is not None and not isinstance(schema, Mapping):
            raise InvalidSetting("the schema must be a JSON object", code="invalid_event_type")
        return cls(
            check_name(name, "event type", limit=NAME_LIMIT),
            check_domain(domain),
            None if schema is None else encode(dict(schema), limit=SCHEMA_LIMIT, what="schema"),
            check_text(description),
        )


def check_domain(domain: object) -> str | None:
    return None if domain is None else check_name(domain, "domain")


def check_text(description: object) -> str | None:
    if description is None:
        return None
    if not isinstance(description, str) or len(description) > TEXT_LIMIT:
        raise InvalidSetting(f"a description must be text of up to {TEXT_LIMIT:,} characters", code="invalid_name")
    return description


def not_registered(registry: Registry, name: str) -> Refused:
    code = f"{registry.replace(' ', '_')}_unregistered"
    return Refused(f"{registry} {name} is not registered", code=code)


def event_data_invalid(name: str, problem: str) -> Refused:
    return Refused(f"the data of event {name} does not fit its schema: {problem}", code="event_data_invalid")


def tenant_required(kind: str) -> Refused:
    return Refused(f"a tenant is required: job of kind {kind} refused", code="tenant_required")
