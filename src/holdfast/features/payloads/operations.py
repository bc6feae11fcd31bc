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
from typing import Annotated, Any, Unpack

from holdfast.engine.declared import Help, http, local_only
from holdfast.engine.hints import check_options
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.operation import Program, awaited, drive, operation
from holdfast.engine.payload import encode
from holdfast.errors import HoldfastError, InvalidSetting, NotFound, Refused
from holdfast.features.payloads.model import (
    EACH_KIND,
    NO_RULE,
    SETTINGS,
    Effective,
    PayloadRule,
    PolicyOptions,
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
from holdfast.worker.retention import delete_all_orphans

log = logging.getLogger("holdfast.worker")

_Rules = list[PayloadRule]  # inside the class, `list` is an operation

RuleKind = Annotated[str, Help("The job kind; without it, the rule for every kind.", "KIND", argument=True)]
EveryTenant = Annotated[bool, Help("The rule of every tenant.", http=False, cli=False)]
DeclaredBy = Annotated[str, Help("The rule that this program declares in its code.", "NAME")]


class PayloadRules(StoreNamespace):
    """Rules for payloads. If several rules apply to a job, the strictest value of each option counts. A rule applies to
    jobs enqueued afterwards; payloads of a restricted kind are hidden at once.

    A worker that starts writes the rules that kinds declare in code, under the program's name.
    """

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._declared: dict[str, RuleDraft] = {}
        self._caches: dict[str, PayloadRuleCache] = {}

    @operation
    @http(
        "PUT /payload-rules",
        "admin",
        tenant="one",
        example={"kind": "send_mail", "signal_only": True, "forbidden": ["password"], "max_bytes": "64KB"},
    )
    def set(
        self, kind: RuleKind = EACH_KIND, *, every_tenant: EveryTenant = False, **options: Unpack[RuleOptions]
    ) -> Program[PayloadRule]:
        """Set the payload rule of a kind, or without a kind that of every kind. It applies to jobs that are enqueued
        from now on; restricted payloads are hidden at once.

        ``app.payload_rules.set("import", signal_only=True, max_bytes="16KB")``
        """
        check_options(options, RuleOptions.__annotations__)
        if "requires_approval" in options:
            options["requires_approval"] = approval_rule(required_approval(options["requires_approval"] or False))
        draft = RuleDraft.of(kind, **options)
        return (yield from run(self._store.payload_rules.set(draft, self._actor, self._scope(every_tenant))))

    aset = awaited(set)

    @operation
    @http("DELETE /payload-rules", "admin", tenant="one")
    def remove(
        self, kind: RuleKind = EACH_KIND, *, every_tenant: EveryTenant = False, declared_by: DeclaredBy = ""
    ) -> Program[None]:
        """Remove an operator's rule, or one of a program that no longer exists. A rule declared in code returns when
        the next worker starts."""
        tenant = self._scope(every_tenant)
        if not (yield from run(self._store.payload_rules.remove(kind, declared_by, self._actor, tenant))):
            raise _not_found(kind, tenant)

    aremove = awaited(remove)

    @operation
    @http("GET /payload-rules", "read")
    def list(self) -> Program[_Rules]:
        """List the payload rules of the tenant and of every tenant."""
        return (yield from run(self._store.payload_rules.list(self._tenant)))

    alist = awaited(list)

    @operation
    @http("GET /payload-rules/one", "read", name="show_payload_rule")
    def get(
        self, kind: RuleKind = EACH_KIND, *, every_tenant: EveryTenant = False, declared_by: DeclaredBy = ""
    ) -> Program[PayloadRule]:
        """Show the rule for exactly this kind: an operator's, or one of a program."""
        wanted = (self._scope(every_tenant), kind, declared_by)
        for rule in (yield from run(self._store.payload_rules.list(self._tenant))):
            if (rule.tenant, rule.kind, rule.declared_by) == wanted:
                return rule
        raise _not_found(kind, wanted[0])

    aget = awaited(get)

    @operation
    @http("GET /payload-rules/effective", "read", name="effective_payload_rule")
    def effective(self, kind: Annotated[str, Help("The job kind.", "KIND")]) -> Program[Effective]:
        """Show all rules that apply to jobs of a kind, combined."""
        return effective((yield from run(self._store.payload_rules.list(self._tenant))), self._tenant, kind)

    aeffective = awaited(effective)

    @operation
    @local_only("use effective(kind).refusal(kind, payload)")
    def check(
        self,
        kind: Annotated[str, Help("The job kind.", "KIND")],
        payload: Annotated[Any, Help("JSON, @file, or - for stdin.", "PAYLOAD")],
    ) -> Program[HoldfastError | None]:
        """Check a payload against the rules without enqueuing it. Returns the error, or None if it is accepted."""
        rules = yield from run(self._store.payload_rules.list(self._tenant))
        return effective(rules, self._tenant, kind).refusal(kind, encode(payload))

    acheck = awaited(check)

    def _scope(self, every_tenant: bool) -> str:
        return EVERY_TENANT if every_tenant else self._tenant

    def _declare(
        self, kind: str, options: PolicyOptions, *, approval: dict[str, Any] | None = None, at_most_once: bool = False
    ) -> Effective:
        """Remember a rule that the code declares until a worker starts. Returns its effect on payloads."""
        if options or approval is not None or at_most_once:
            rule = {"requires_approval": approval, "at_most_once": at_most_once or None}
            self._declared[kind] = RuleDraft.of(kind, **options, **rule)
        return combine([RuleDraft.of(kind, **options)]) if options else NO_RULE

    def _cache(self, tenant: str) -> PayloadRuleCache:
        """The rules as the workers of this process for a tenant know them."""
        return self._caches.setdefault(tenant, PayloadRuleCache())

    def _sync_declarations(self, tenant: str, notifier: str | None = None) -> None:
        """Write the declared rules where they differ, and read all rules. A worker that cannot reach the database yet
        starts anyway, and runs no job until it has read them."""
        caller, cache, program = self._caller, self._cache(tenant), self._caller.name
        try:
            rules = caller.run(caller.store.payload_rules.list(tenant))
            cache.load(rules)
            declared = {kind: _with_notifier(draft, notifier) for kind, draft in sorted(self._declared.items())}
            own = {rule.kind: rule for rule in rules if (rule.tenant, rule.declared_by) == (tenant, program)}
            if own.keys() != declared.keys() or any(_differs(own[k], d) for k, d in declared.items()):
                drafts = [*declared.values()]
                caller.run(caller.store.payload_rules.declare(program, drafts, caller.actor, tenant))
                cache.load(caller.run(caller.store.payload_rules.list(tenant)))
        except HoldfastError as error:
            if isinstance(error, InvalidSetting) or error.code == "not_allowed":
                raise
            log.warning("Payload rules could not be read or written: %s", error)
            cache.load(None)


def _not_found(kind: str, tenant: str) -> NotFound:
    return NotFound(f"no payload rule for {kind} in tenant {tenant}", code="payload_rule_not_found")


def _with_notifier(draft: RuleDraft, notifier: str | None) -> RuleDraft:
    """A program without this code asks for the approval, and has to notify the same people."""
    if draft.requires_approval is None or notifier is None:
        return draft
    return dataclasses.replace(draft, requires_approval=draft.requires_approval | {"notify": notifier})


def _differs(stored: PayloadRule, draft: RuleDraft) -> bool:
    return any(getattr(stored, name) != getattr(draft, name) for name in SETTINGS)


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
        drive(delete_all_orphans(caller.store, vault.artifacts, caller.tenant), StoreNamespace(caller)._perform)
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
