"""The part of the model that is about limits: who is counted together, and who may not be begun because it is full.

Nobody is parked here. That a store takes jobs without room out of the line until there is some is its own affair: at
which of several full limits, and whether one that has room again waits for the next duty. What must be the same is
who is begun: in queue order, everybody but those with a full limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.states import HELD
from holdfast.features.limits.model import EACH, SCOPES, Ask, Bucket, Limit, Rule, Standing
from tests.model.reserving import Reserving
from tests.model.world import ModelJob


def names_of(job: ModelJob, scope: str) -> list[str]:
    """What a job is counted as in a scope."""
    if scope in ("key", "resource"):
        return [use.partition(":")[2] for use in job.spec.uses if use.startswith(f"{scope}:")]
    own = {"all": EACH, "queue": job.spec.queue, "kind": job.spec.kind, "tenant": job.tenant, "agent": job.spec.agent}
    name = own[scope]
    return [] if name is None else [name]


def counts(bucket: Bucket, job: ModelJob) -> bool:
    if bucket.tenant not in (EVERY_TENANT, job.tenant):
        return False
    names = names_of(job, bucket.scope)
    return bucket.name in names or (bucket.name == EACH and bool(names))


class Limiting(Reserving):
    def __init__(self, now: datetime) -> None:
        super().__init__(now)
        self.limits: dict[Bucket, Limit] = {}
        self.may_park = False
        """Whether a store has ever had a reason to take a job without room out of the line."""

    def set_limit(self, rule: Rule, actor: str, tenant: str) -> Limit:
        self.may_park = True
        what = Bucket(tenant, rule.scope, rule.name)
        old = self.limits.get(what)
        if old is None or old.concurrency != rule.concurrency:
            since = self.now if old is None else old.created_at
            new = Limit(*what, rule.concurrency, None, None, None, actor, since, self.now)
            self.limits[what] = new
        return self.limits[what]

    def reserve(self, ask: Ask, actor: str, tenant: str) -> Standing:
        self.may_park |= ask.scope == "resource"
        return super().reserve(ask, actor, tenant)

    @property
    def limited(self) -> bool:
        """What is reserved is a limit of none, where jobs are concerned that need it."""
        asked = [each for each in self.reservations.values() if each.state in ("waiting", "active")]
        return bool(self.limits) or any(each.scope == "resource" for each in asked)

    def remove_limit(self, scope: str, name: str, actor: str, tenant: str) -> bool:
        return self.limits.pop(Bucket(tenant, scope, name), None) is not None

    def attend_limits(self) -> None:
        self.tidy()

    def limits_of(self, tenant: str) -> list[Limit]:
        """With what runs under each."""
        ours = {what: each for what, each in self.limits.items() if tenant in (EVERY_TENANT, each.tenant)}
        ours |= {what: each for what, each in self.limits.items() if each.tenant == EVERY_TENANT}
        held = [job for job in self.jobs.values() if job.state in HELD]
        found = [replace(each, running=sum(counts(what, job) for job in held)) for what, each in ours.items()]
        order: list[str] = list(SCOPES)
        return sorted(found, key=lambda limit: (order.index(limit.scope), limit.name, limit.tenant))

    def let_in(self, line: Sequence[ModelJob], want: int) -> list[ModelJob]:
        """The first so many that have room, each one after those before it."""
        held = [job for job in self.jobs.values() if job.state in HELD]
        taken: list[ModelJob] = []
        for job in line:
            if len(taken) < want and not self._full(job, [*held, *taken]):
                taken.append(job)
        return taken

    def _full(self, job: ModelJob, held: Sequence[ModelJob]) -> bool:
        for whose in (EVERY_TENANT, job.tenant):
            for scope in SCOPES:
                for name in names_of(job, scope):
                    bucket = Bucket(whose, scope, name)
                    # Of a limit for one name and one for each name the first counts.
                    limit = self.limits.get(bucket) or self.limits.get(Bucket(whose, scope, EACH))
                    most = None if limit is None else limit.concurrency
                    if most is not None and sum(counts(bucket, other) for other in held) >= most:
                        return True
        return False
