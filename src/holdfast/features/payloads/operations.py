"""``app.payload_rules``; key rotation.

Changing keys: what is sealed with an old one is opened, sealed with the current one, and put back, page by page.

First payloads and results, then what handlers have kept on their way. Each is a transaction of its own, so it can be
stopped and begun again at any moment, and jobs run meanwhile. What cannot be opened (its key is not here) is left as it
is, and counted. What lay in the artifact store under the old key goes when no job names it any more: a retry that is a
job of its own may.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.payload import encode
from holdfast.errors import HoldfastError, InvalidSetting, NotFound, Refused
from holdfast.features.payloads.model import (
    EACH_KIND,
    Effective,
    PayloadRule,
    RuleDraft,
    RuleOptions,
    combine,
    effective,
)
from holdfast.features.payloads.store import SealedJob, SealedPart
from holdfast.stores.flow import Flow
from holdfast.stores.port import Caller
from holdfast.stores.vault import Vault, What
from holdfast.worker.executor import PayloadRuleCache
from holdfast.worker.maintenance import clear_now

log = logging.getLogger("holdfast.worker")

_Rules = list[PayloadRule]  # inside the class the word is a method


class PayloadRules:
    """Of several rules that hold for a job, in each point the strictest counts; none loosens another. A rule holds for
    what is enqueued from then on, except that what is restricted is hidden at once.

    What kinds declare in the code (``@app.job(signal_only=True)``) is put down when a worker starts, under the
    program's name.
    """

    def __init__(self, caller: Caller, program: str) -> None:
        self._caller = caller
        self._program = program
        self.declared: dict[str, RuleDraft] = {}
        self.book = PayloadRuleCache()

    def set(self, kind: str = EACH_KIND, *, every_tenant: bool = False, **says: Unpack[RuleOptions]) -> PayloadRule:
        """``app.payload_rules.set("import", signal_only=True, max_bytes="16KB")``; without a kind for each of them."""
        return self._caller.run(self._set(RuleDraft.of(kind, **says), every_tenant))

    async def aset(
        self, kind: str = EACH_KIND, *, every_tenant: bool = False, **says: Unpack[RuleOptions]
    ) -> PayloadRule:
        return await self._caller.arun(self._set(RuleDraft.of(kind, **says), every_tenant))

    def delete(self, kind: str = EACH_KIND, *, every_tenant: bool = False, declared_by: str = "") -> None:
        """An operator's rule; or what a program declared that is not there any more."""
        caller, whose = self._caller, self._whose(every_tenant)
        if not caller.run(caller.store.payload_rules.remove(kind, declared_by, caller.actor, whose)):
            raise NotFound(f"there is no rule for {kind} in tenant {whose}", code="rule_not_found")

    def list(self) -> _Rules:
        """Those of the tenant, and those of every tenant."""
        return self._caller.run(self._caller.store.payload_rules.list(self._caller.tenant))

    async def alist(self) -> _Rules:
        return await self._caller.arun(self._caller.store.payload_rules.list(self._caller.tenant))

    def get(self, kind: str = EACH_KIND, *, every_tenant: bool = False) -> PayloadRule | None:
        """The operator's own rule for exactly this."""
        wanted = (self._whose(every_tenant), kind, "")
        return next((each for each in self.list() if (each.tenant, each.kind, each.declared_by) == wanted), None)

    def effective(self, kind: str) -> Effective:
        """What all of them come to for jobs of a kind."""
        return effective(self.list(), self._caller.tenant, kind)

    def check(self, kind: str, payload: Any) -> HoldfastError | None:
        """What the rules would say to a payload; None for nothing. Nothing is enqueued."""
        return self.effective(kind).objection(kind, encode(payload))

    def _set(self, draft: RuleDraft, every_tenant: bool) -> Flow[PayloadRule]:
        return self._caller.store.payload_rules.set(draft, self._caller.actor, self._whose(every_tenant))

    def _whose(self, every_tenant: bool) -> str:
        return EVERY_TENANT if every_tenant else self._caller.tenant

    # --- what kinds declare ---

    def declare(self, kind: str, says: RuleOptions) -> Effective:
        """Keep it for when a worker starts; answers what it comes to."""
        if not says:
            return combine(())
        self.declared[kind] = draft = RuleDraft.of(kind, **says)
        return combine([draft])

    def put_down(self, tenant: str) -> None:
        """Bring the database to what the code says, where it differs, and read all there is. A worker that cannot reach
        the database yet begins all the same, and says nothing of any payload until it can."""
        caller = self._caller
        try:
            rules = caller.run(caller.store.payload_rules.list(tenant))
            own = {each.kind: each for each in rules if (each.tenant, each.declared_by) == (tenant, self._program)}
            if own.keys() != self.declared.keys() or any(differs(own[k], d) for k, d in self.declared.items()):
                drafts = [self.declared[kind] for kind in sorted(self.declared)]
                caller.run(caller.store.payload_rules.declare(self._program, drafts, caller.actor, tenant))
                rules = caller.run(caller.store.payload_rules.list(tenant))
            self.book.load(rules)
        except HoldfastError as error:
            if isinstance(error, InvalidSetting):
                raise
            log.warning("the rules for payloads could not be read yet: %s", error)
            self.book.load(None)


def differs(stored: PayloadRule, draft: RuleDraft) -> bool:
    return (
        *(stored.signal_only, stored.forbidden, stored.classification),
        *(stored.max_bytes, stored.max_result_bytes, stored.store),
    ) != (
        *(draft.signal_only, draft.forbidden, draft.classification),
        *(draft.max_bytes, draft.max_result_bytes, draft.store),
    )


PAGE = 100


@dataclass(frozen=True, slots=True)
class Rotated:
    """``unread``: those that no key here opens. ``passed``: those that changed meanwhile, and are met the next time."""

    resealed: int = 0
    unread: int = 0
    passed: int = 0


def rotate(caller: Caller, vault: Vault, told: Callable[[Rotated], None] = lambda _: None, page: int = PAGE) -> Rotated:
    """Seal everything of the caller's tenant (or of all, for ``*``) with the current key; tells how far it is."""
    if vault.keys is None:
        raise InvalidSetting("there are no keys here", code="no_keys", fix="Set HOLDFAST_KEYS, the new key first.")
    done, after = Rotated(), None
    while found := caller.run(
        caller.store.payload_rules.sealed_payloads(vault.keys.current, after, page, caller.tenant)
    ):
        for job in found:
            for what, text in (("payload", job.payload), ("result", job.result)):
                if text is not None:
                    done = _counted(done, _one(caller, vault, job, what, text))  # type: ignore[arg-type]
        after = found[-1].id
        told(done)
    done = _rotate_parts(caller, vault, done, told, page)
    if vault.artifacts is not None:
        clear_now(caller, vault.artifacts, caller.tenant)
    return done


def _rotate_parts(caller: Caller, vault: Vault, done: Rotated, told: Callable[[Rotated], None], page: int) -> Rotated:
    """What handlers have kept on their way."""
    assert vault.keys is not None
    after: SealedPart | None = None
    while found := caller.run(caller.store.payload_rules.sealed_parts(vault.keys.current, after, page, caller.tenant)):
        for part in found:
            done = _counted(done, _part(caller, vault, part))
        after = found[-1]
        told(done)
    return done


def _part(caller: Caller, vault: Vault, part: SealedPart) -> bool | None:
    try:
        opened = vault.open(part.text, what=part.what, tenant=part.tenant, job_id=part.job_id, place=part.place)
    except HoldfastError:
        return None
    becomes = vault.seal_anew(
        opened, part.text, what=part.what, tenant=part.tenant, job_id=part.job_id, place=part.place
    )
    return caller.run(caller.store.payload_rules.reseal_part(part, becomes, caller.actor, part.tenant))


def _counted(done: Rotated, written: bool | None) -> Rotated:
    return Rotated(done.resealed + (written is True), done.unread + (written is None), done.passed + (written is False))


def _one(caller: Caller, vault: Vault, job: SealedJob, what: What, text: str) -> bool | None:
    """Whether it was written; None when it could not be opened."""
    try:
        opened = _opened(caller, vault, job, what, text)
    except HoldfastError:
        return None
    becomes = vault.seal_anew(opened, text, what=what, tenant=job.tenant, job_id=job.id)
    written = caller.run(caller.store.payload_rules.reseal(job.id, text, becomes, caller.actor, job.tenant))
    if not written:
        vault.drop(becomes, tenant=job.tenant)
    return written


def _opened(caller: Caller, vault: Vault, job: SealedJob, what: What, text: str) -> str:
    try:
        return vault.open(text, what=what, tenant=job.tenant, job_id=job.id)
    except Refused as refused:
        if refused.code != "seal_broken":
            raise
        # A retry that is a job of its own has the payload of the first one.
        for other in caller.run(caller.store.jobs.chain(job.id, job.tenant)):
            try:
                return vault.open(text, what=what, tenant=job.tenant, job_id=other.id)
            except Refused:
                continue
        raise
