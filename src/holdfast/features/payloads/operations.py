"""``app.payload_rules``, and key rotation.

A key rotation decrypts each value that an old key encrypted and stores it encrypted with the current key, page by
page: first payloads and results, then checkpoints, step results and logs. Each value is one transaction, so a rotation
can be stopped and started again at any time while jobs run. A value whose key is missing is counted and not changed. A
file in the artifact store that an old key encrypted is deleted when no job refers to it any more: a retry as a new job
may.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.operation import Program, awaited, operation
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
from holdfast.steps.approvals import approval_rule, required_approval
from holdfast.stores.flow import run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.stores.vault import Vault, What
from holdfast.worker.executor import PayloadRuleCache
from holdfast.worker.maintenance import delete_all_orphans

log = logging.getLogger("holdfast.worker")

_Rules = list[PayloadRule]  # inside the class, `list` is an operation


class PayloadRules(StoreNamespace):
    """Rules for payloads. If several rules apply to a job, the strictest value of each option counts. A rule applies to
    jobs enqueued afterwards; payloads of a restricted kind are hidden at once.

    A worker that starts writes the rules that kinds declare in code, under the program's name.
    """

    def __init__(self, caller: Caller, program: str) -> None:
        super().__init__(caller)
        self._program = program
        self._declared: dict[str, RuleDraft] = {}
        self._caches: dict[str, PayloadRuleCache] = {}

    @operation
    def set(
        self, kind: str = EACH_KIND, *, every_tenant: bool = False, **options: Unpack[RuleOptions]
    ) -> Program[PayloadRule]:
        """Set the rule of a kind, or without a kind for all kinds: ``app.payload_rules.set("import", signal_only=True,
        max_bytes="16KB")``."""
        if "requires_approval" in options:
            options["requires_approval"] = approval_rule(required_approval(options["requires_approval"] or False))
        draft = RuleDraft.of(kind, **options)
        return (yield from run(self._store.payload_rules.set(draft, self._actor, self._scope(every_tenant))))

    aset = awaited(set)

    @operation
    def remove(self, kind: str = EACH_KIND, *, every_tenant: bool = False, declared_by: str = "") -> Program[None]:
        """Remove an operator's rule, or with ``declared_by`` one that a program no longer declares."""
        tenant = self._scope(every_tenant)
        if not (yield from run(self._store.payload_rules.remove(kind, declared_by, self._actor, tenant))):
            raise NotFound(f"no payload rule for {kind} in tenant {tenant}", code="rule_not_found")

    aremove = awaited(remove)

    @operation
    def list(self) -> Program[_Rules]:
        """The rules of this tenant and those of every tenant."""
        return (yield from run(self._store.payload_rules.list(self._tenant)))

    alist = awaited(list)

    @operation
    def get(self, kind: str = EACH_KIND, *, every_tenant: bool = False) -> Program[PayloadRule]:
        """The operator's rule for exactly this kind, or ``NotFound``."""
        tenant = self._scope(every_tenant)
        for rule in (yield from run(self._store.payload_rules.list(self._tenant))):
            if (rule.tenant, rule.kind, rule.declared_by) == (tenant, kind, ""):
                return rule
        raise NotFound(f"no rule for {kind} in tenant {tenant}", code="rule_not_found")

    aget = awaited(get)

    @operation
    def effective(self, kind: str) -> Program[Effective]:
        """All rules that apply to jobs of a kind, combined."""
        return effective((yield from run(self._store.payload_rules.list(self._tenant))), self._tenant, kind)

    aeffective = awaited(effective)

    @operation
    def check(self, kind: str, payload: Any) -> Program[HoldfastError | None]:
        """Check a payload against the rules without enqueuing it. Returns the error, or None if it is accepted."""
        rules = yield from run(self._store.payload_rules.list(self._tenant))
        return effective(rules, self._tenant, kind).refusal(kind, encode(payload))

    acheck = awaited(check)

    def _scope(self, every_tenant: bool) -> str:
        return EVERY_TENANT if every_tenant else self._tenant

    def _declare(
        self, kind: str, options: RuleOptions, *, approval: dict[str, Any] | None = None, at_most_once: bool = False
    ) -> Effective:
        """Remember a rule that the code declares until a worker starts. Returns its effect on payloads."""
        if options or approval is not None or at_most_once:
            rule = {"requires_approval": approval, "at_most_once": at_most_once or None}
            self._declared[kind] = RuleDraft.of(kind, **(options | rule))  # type: ignore[arg-type]
        return combine([RuleDraft.of(kind, **options)] if options else ())

    def _cache(self, tenant: str) -> PayloadRuleCache:
        """The rules as the workers of this process for a tenant know them."""
        return self._caches.setdefault(tenant, PayloadRuleCache())

    def _sync_declarations(self, tenant: str, notifier: str | None = None) -> None:
        """Write the declared rules where they differ, and read all rules. A worker that cannot reach the database yet
        starts anyway, and runs no job until it has read them."""
        caller, cache = self._caller, self._cache(tenant)
        try:
            rules = caller.run(caller.store.payload_rules.list(tenant))
            cache.load(rules)
            declared = {kind: _with_notifier(draft, notifier) for kind, draft in sorted(self._declared.items())}
            own = {rule.kind: rule for rule in rules if (rule.tenant, rule.declared_by) == (tenant, self._program)}
            if own.keys() != declared.keys() or any(_differs(own[k], d) for k, d in declared.items()):
                drafts = [*declared.values()]
                caller.run(caller.store.payload_rules.declare(self._program, drafts, caller.actor, tenant))
                cache.load(caller.run(caller.store.payload_rules.list(tenant)))
        except HoldfastError as error:
            if isinstance(error, InvalidSetting) or error.code == "not_allowed":
                raise
            log.warning("Payload rules could not be read or written: %s", error)
            cache.load(None)


def _with_notifier(draft: RuleDraft, notifier: str | None) -> RuleDraft:
    """A program without this code asks for the approval, and has to notify the same people."""
    if draft.requires_approval is None or notifier is None:
        return draft
    return dataclasses.replace(draft, requires_approval=draft.requires_approval | {"notify": notifier})


def _differs(stored: PayloadRule, draft: RuleDraft) -> bool:
    names = (field.name for field in dataclasses.fields(RuleDraft) if field.name != "kind")
    return any(getattr(stored, name) != getattr(draft, name) for name in names)


PAGE = 100


@dataclass(frozen=True, slots=True)
class Rotated:
    """The counts of a key rotation. ``unread``: values that no configured key decrypts. ``passed``: values that changed
    meanwhile, which the next rotation finds."""

    resealed: int = 0
    unread: int = 0
    passed: int = 0


def rotate(
    caller: Caller, vault: Vault, report: Callable[[Rotated], None] = lambda _: None, page: int = PAGE
) -> Rotated:
    """Re-encrypt all values of the caller's tenant (``*``: of every tenant) with the current key. ``report`` is called
    with the counts after each page."""
    if vault.keys is None:
        raise InvalidSetting(
            "no encryption keys are set", code="no_keys", fix="Set HOLDFAST_KEYS with the new key first."
        )
    done, after = Rotated(), None
    while jobs := caller.run(
        caller.store.payload_rules.sealed_payloads(vault.keys.current, after, page, caller.tenant)
    ):
        for job in jobs:
            for what, text in (("payload", job.payload), ("result", job.result)):
                if text is not None:
                    done = _counted(done, _reseal(caller, vault, job, what, text))  # type: ignore[arg-type]
        after = jobs[-1].id
        report(done)
    done = _rotate_parts(caller, vault, done, report, page)
    if vault.artifacts is not None:
        StoreNamespace(caller)._drive(delete_all_orphans(caller.store, vault.artifacts, caller.tenant))
    return done


def _rotate_parts(caller: Caller, vault: Vault, done: Rotated, report: Callable[[Rotated], None], page: int) -> Rotated:
    """Rotate checkpoints, step results and log lines."""
    assert vault.keys is not None
    after: SealedPart | None = None
    while parts := caller.run(caller.store.payload_rules.sealed_parts(vault.keys.current, after, page, caller.tenant)):
        for part in parts:
            done = _counted(done, _reseal_part(caller, vault, part))
        after = parts[-1]
        report(done)
    return done


def _reseal_part(caller: Caller, vault: Vault, part: SealedPart) -> bool | None:
    place = None if part.what == "payload" else part.place  # a payload is sealed for its job, whatever its attempt
    try:
        opened = (
            _opened(caller, vault, part.job_id, part.tenant, "payload", part.text)
            if place is None
            else vault.open(part.text, what=part.what, tenant=part.tenant, job_id=part.job_id, place=place)
        )
    except HoldfastError:
        return None
    becomes = vault.reseal(opened, part.text, what=part.what, tenant=part.tenant, job_id=part.job_id, place=place)
    written = caller.run(caller.store.payload_rules.reseal_part(part, becomes, caller.actor, part.tenant))
    if not written:
        vault.drop(becomes, tenant=part.tenant)
    return written


def _counted(done: Rotated, written: bool | None) -> Rotated:
    return Rotated(done.resealed + (written is True), done.unread + (written is None), done.passed + (written is False))


def _reseal(caller: Caller, vault: Vault, job: SealedJob, what: What, text: str) -> bool | None:
    """Whether the value was written; None if it could not be decrypted."""
    try:
        opened = _opened(caller, vault, job.id, job.tenant, what, text)
    except HoldfastError:
        return None
    becomes = vault.reseal(opened, text, what=what, tenant=job.tenant, job_id=job.id)
    written = caller.run(caller.store.payload_rules.reseal(job.id, text, becomes, caller.actor, job.tenant))
    if not written:
        vault.drop(becomes, tenant=job.tenant)
    return written


def _opened(caller: Caller, vault: Vault, job_id: str, tenant: str, what: What, text: str) -> str:
    try:
        return vault.open(text, what=what, tenant=tenant, job_id=job_id)
    except Refused as refused:
        if refused.code != "seal_broken":
            raise
        # A retry as a new job shares the payload of the first attempt, which was encrypted for that job's id.
        for other in caller.run(caller.store.jobs.chain(job_id, tenant)):
            try:
                return vault.open(text, what=what, tenant=tenant, job_id=other.id)
            except Refused:
                continue
        raise
