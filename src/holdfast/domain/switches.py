"""Pausing (DP-18): nothing of what a switch holds is begun, until somebody resumes it or its time is over. Pure.

A switch is for everything, a queue, a kind or an agent; of every tenant (``*``) or of one. Everything of every tenant
is the whole system: while that is paused the duties rest as well, and new jobs are refused unless it says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypedDict

from holdfast.domain.limits import EACH
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.names import check_name
from holdfast.engine.settlement import storable
from holdfast.engine.times import instant
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidInput, InvalidSetting, Refused

NAME_LIMIT: Final = 255
SHORTEST: Final = 0.001


@dataclass(frozen=True, slots=True)
class Switch:
    """What is paused, why, by whom, and until when; None: until somebody resumes it."""

    tenant: str
    scope: str
    name: str
    reason: str
    refuse_enqueue: bool
    set_by: str
    since: datetime
    until: datetime | None

    @property
    def what(self) -> str:
        """``everything``, ``queue mail``, ``kind pay of tenant acme``."""
        return in_words(self.scope, self.name, self.tenant)

    @property
    def halts(self) -> bool:
        """It is the whole system's."""
        return self.scope == "all" and self.tenant == EVERY_TENANT

    @property
    def says(self) -> str:
        """The words of ``switch_says``."""
        until = "" if self.until is None else f" until {_at(self.until)}"
        return f"{self.what} was paused by {self.set_by} at {_at(self.since)}{until}: {self.reason}"

    @property
    def options(self) -> str:
        """How it is named on the command line."""
        if self.halts:
            return "--all"
        parts = [] if self.scope == "all" else [f"--{self.scope} {self.name}"]
        return " ".join(parts if self.tenant == EVERY_TENANT else [*parts, f"--tenant {self.tenant}"])

    def holds(self, tenant: str, queue: str, kind: str, agent: str | None) -> bool:
        named = {"all": EACH, "queue": queue, "kind": kind, "agent": agent}[self.scope]
        return self.tenant in (EVERY_TENANT, tenant) and named == self.name

    def is_over(self, now: datetime) -> bool:
        return self.until is not None and self.until <= now


@dataclass(frozen=True, slots=True)
class Pausing:
    """What is to be paused, checked. ``lasting`` is in seconds of the store's clock, in place of ``until``."""

    tenant: str
    scope: str
    name: str
    reason: str
    until: datetime | None = None
    lasting: float | None = None
    refuse_enqueue: bool | None = None

    @property
    def refuses(self) -> bool:
        """Unless it was said, the whole system refuses new jobs, and the rest takes them."""
        if self.refuse_enqueue is not None:
            return self.refuse_enqueue
        return self.scope == "all" and self.tenant == EVERY_TENANT

    @classmethod
    def of(
        cls,
        what: tuple[str, str, str],
        reason: object,
        until: datetime | Duration | None = None,
        refuse_enqueue: bool | None = None,
    ) -> Pausing:
        why = storable(reason) if isinstance(reason, str) else None
        if why is None or not why.strip():
            raise InvalidInput("nothing is paused without a reason", code="reason_required")
        tenant, scope, name = what
        if not isinstance(until, datetime):
            lasting = None if until is None else seconds(until, "time")
            if lasting is not None and lasting < SHORTEST:
                raise InvalidSetting("a pause lasts at least a millisecond", code="invalid_duration")
            return cls(tenant, scope, name, why, None, lasting, refuse_enqueue)
        return cls(tenant, scope, name, why, instant(until, "until"), None, refuse_enqueue)


class Named(TypedDict, total=False):
    """What is paused or resumed: a queue, a kind or an agent, of every tenant or of the one named; a tenant; or
    everything."""

    queue: str | None
    kind: str | None
    agent: str | None
    tenant: str | None
    everything: bool


def named(
    queue: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    tenant: str | None = None,
    everything: bool = False,
) -> tuple[str, str, str]:
    """The tenant, the scope and the name. Everything has to be said: nobody comes to it by leaving something out."""
    given = [(scope, name) for scope, name in (("queue", queue), ("kind", kind), ("agent", agent)) if name is not None]
    if len(given) > 1 or (everything and (given or tenant is not None)):
        raise InvalidSetting("name one: a queue, a kind, an agent, a tenant, or everything", code="conflicting_options")
    if not given and tenant is None and not everything:
        raise InvalidSetting("say what: a queue, a kind, an agent, a tenant, or everything", code="nothing_named")
    whose = EVERY_TENANT if tenant is None else check_name(tenant, "tenant")
    if not given:
        return whose, "all", EACH
    scope, name = given[0]
    return whose, scope, check_name(name, scope, limit=NAME_LIMIT)


def in_words(scope: str, name: str, tenant: str) -> str:
    thing = "everything" if scope == "all" else f"{scope} {name}"
    return thing if tenant == EVERY_TENANT else f"{thing} of tenant {tenant}"


def refused(switch: Switch, kind: str) -> Refused:
    """A job of this kind is not accepted now."""
    return Refused(f"no job of kind {kind} is accepted: {switch.says}", code="paused", fix=LATER)


LATER: Final = "Enqueue it later, or resume what is paused: holdfast switches, holdfast resume."


def _at(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
