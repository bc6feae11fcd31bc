"""The part of the model that is about reservations: who is first in line, and what is not begun meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.states import HELD
from holdfast.features.limits.model import Ask, ReservationState, Standing
from tests.model.registry import Registry
from tests.model.world import ModelJob, seconds


@dataclass
class ModelReservation:
    id: str
    tenant: str
    scope: str
    name: str
    asked_at: datetime
    expires_at: datetime
    state: ReservationState = "waiting"

    def covers(self, job: ModelJob) -> bool:
        if self.tenant not in (EVERY_TENANT, job.tenant):
            return False
        if self.scope == "resource":
            return f"resource:{self.name}" in job.spec.uses
        return self.scope == "all" or self.name == job.spec.queue

    def conflicts(self, other: ModelReservation) -> bool:
        ours = self.tenant == other.tenant or EVERY_TENANT in (self.tenant, other.tenant)
        same = (self.scope, self.name) == (other.scope, other.name) or "all" in (self.scope, other.scope)
        return self is not other and ours and same


class Reserving(Registry):
    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.reservations: dict[str, ModelReservation] = {}

    def _standing(self, own: ModelReservation) -> Standing:
        state = "expired" if own.state in ("waiting", "active") and own.expires_at <= self.now else own.state
        running = sum(job.state in HELD and own.covers(job) for job in self.jobs.values())
        return Standing(state, running, len(self._ahead(own)))

    def _ahead(self, own: ModelReservation) -> list[ModelReservation]:
        """Whoever is active, or was there before: one that nobody keeps alive is in nobody's way."""
        alive = [each for each in self.reservations.values() if each.expires_at > self.now and each.conflicts(own)]
        place = (own.asked_at, own.id)
        return [
            each
            for each in alive
            if each.state == "active" or (each.state == "waiting" and (each.asked_at, each.id) < place)
        ]

    def reserve(self, ask: Ask, actor: str, tenant: str) -> Standing:
        until = self.now + seconds(ask.ttl)
        own = self.reservations.get(ask.id)
        if own is None:
            own = ModelReservation(ask.id, tenant, ask.scope, ask.name, self.now, until)
            self.reservations[ask.id] = own
        elif own.state in ("waiting", "active") and own.expires_at > self.now:
            own.expires_at = max(own.expires_at, until)
        if own.state == "waiting" and own.expires_at > self.now and not self._ahead(own):
            self.tidy()
            own.state, own.expires_at = "active", until
        return self._standing(own)

    def tidy(self) -> None:
        for each in self.reservations.values():
            if each.expires_at <= self.now and each.state in ("waiting", "active"):
                each.state = "withdrawn" if each.state == "waiting" else "expired"

    def release_reservation(self, reservation_id: str, why: str, actor: str, tenant: str) -> bool:
        own = self.reservations.get(reservation_id)
        if own is None or own.state not in ("waiting", "active") or tenant not in (EVERY_TENANT, own.tenant):
            return False
        over = own.state == "active" and own.expires_at <= self.now
        own.state = "withdrawn" if own.state == "waiting" else "expired" if over else "released"
        return not over

    def barred(self, job: ModelJob) -> bool:
        active = [each for each in self.reservations.values() if each.state == "active" and each.expires_at > self.now]
        return any(each.covers(job) for each in active)
