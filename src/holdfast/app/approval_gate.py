"""The approval that a job needs before it runs: because of its kind, of a rule in the database, or of its agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.engine.job import Claim
from holdfast.engine.outcome import Failed, Outcome, Paused, Reject
from holdfast.engine.payload import decode_for_display
from holdfast.engine.redaction import JobRedactor, Redactor
from holdfast.engine.steps import BEFORE_ALL, Pause, Script
from holdfast.errors import StepsChanged
from holdfast.features.payloads.model import HIDDEN, NO_RULE, Effective, combined, effective
from holdfast.steps.approvals import ApprovalOptions, decision
from holdfast.steps.driver import Durable, Plan, check_approved, first_question
from holdfast.stores.session import Session
from holdfast.worker.shutdown import Stop

if TYPE_CHECKING:
    from holdfast.app.handlers import Declared, HandlerTools

SHOWN_LIMIT = 32_768


async def require_approval(
    tools: HandlerTools, claim: Claim, asking: ApprovalOptions | None, rule: Effective, stop: Stop
) -> None:
    """Raise ``Suspended`` until the job is approved, if its kind (``asking``), a rule in the database or its agent
    requires approval."""
    asking, notify = _asking(asking, rule, tools.step_tools.notify())
    if asking is None and claim.agent is not None:
        store = tools.client.store
        required = await tools.client.arun(store.steps.requires_approval(claim.agent, claim.tenant))
        asking = ApprovalOptions() if required else None
    if asking is None:
        return
    redact = JobRedactor(tools.redact, claim.payload, rule.restricted)
    step_tools = replace(tools.step_tools, notify=lambda: notify)
    plan = Plan(Durable(claim, tools.client, step_tools, redact, stop))
    await plan.before_all(*_first_question(claim, asking, rule, tools.client, tools.redact))


def _asking(
    asking: ApprovalOptions | None, rule: Effective, notify: str | None
) -> tuple[ApprovalOptions | None, str | None]:
    """The approval that an operator's rule requires, or else the code of the kind, or else the rule of another program;
    and who notifies people of it."""
    if rule.requires_approval is None or (asking is not None and not rule.approval_by_operator):
        return asking, notify
    stored = json.loads(rule.requires_approval)
    notifier = stored.pop("notify", None)
    return stored, notifier or notify


def _first_question(
    claim: Claim, asking: ApprovalOptions, rule: Effective, client: Session, redact: Redactor
) -> tuple[str, str, ApprovalOptions, dict[str, Any]]:
    owner = "" if claim.agent is None else f" for {claim.agent}"
    hidden = rule.restricted or client.vault.keys is not None
    shown = {"payload": HIDDEN} if hidden else _shown(claim, redact)
    return "run", f"Run {claim.kind}{owner} ({claim.id})", asking, shown


def approval_gate(
    client: Session, tenant: str, kinds: Mapping[str, Declared], redact: Redactor, notify: Callable[[], str | None]
) -> Callable[[Sequence[Claim]], Iterator[tuple[Claim, Outcome | None]]]:
    """For a loop that claims jobs itself: the outcome of each claim that may not run, such as the request for its
    approval."""

    def gate(claims: Sequence[Claim]) -> Iterator[tuple[Claim, Outcome | None]]:
        rules = client.run(client.store.payload_rules.list(tenant)) if claims else []
        for claim in claims:
            declared = kinds.get(claim.kind)
            own, rule = (None, NO_RULE) if declared is None else (declared.kind._approval, declared.kind._rule)
            rule = combined(rule, effective(rules, claim.tenant, claim.kind))
            yield claim, _refused(client, claim, own, rule, redact, notify())

    return gate


def _refused(
    client: Session,
    claim: Claim,
    own: ApprovalOptions | None,
    rule: Effective,
    redact: Redactor,
    notify: str | None,
) -> Outcome | None:
    asking, notifier = _asking(own, rule, notify)
    if asking is None and claim.agent is not None:
        required = client.run(client.store.steps.requires_approval(claim.agent, claim.tenant))
        asking = ApprovalOptions() if required else None
    script = Script(claim.id)
    try:
        if claim.resumed:
            script.remember(client.run(client.store.steps.list(claim.id, claim.tenant)))
        first = script.first
        if asking is not None:
            name, summary, options, shown = _first_question(claim, asking, rule, client, redact)
            approval = first_question(name, summary, options, shown, notifier)
            first = script.at(BEFORE_ALL, name, "approval", approval["content_hash"])
            if first is None:
                return Paused(Pause(BEFORE_ALL, name, "approval", approval=approval).to_json(), [])
        if first is not None:
            check_approved(decision(first.value, None))
        if (changed := script.not_asked()) is not None:
            raise changed
    except (Reject, StepsChanged) as error:
        return Failed(error.code, str(error), final=True)
    return None


async def check_decisions(tools: HandlerTools, claim: Claim) -> None:
    """Refuse a job with a decision that its program cannot apply, because it does not ask: a command, a remote
    worker."""
    if claim.resumed:
        durable = Durable(claim, tools.client, tools.step_tools, tools.redact, Stop())
        await durable.check_allowed()
        durable.check_decisions()


def _shown(claim: Claim, redact: Redactor) -> dict[str, Any]:
    """Return the payload as approvers see it: without values whose names suggest a secret."""
    payload = decode_for_display(claim.payload)
    if len(claim.payload) > SHOWN_LIMIT or not isinstance(payload, dict):
        return {"payload": f"{len(claim.payload):,} characters; see holdfast jobs show {claim.id}"}
    return {"payload": {name: "***" if redact.looks_secret(name) else value for name, value in payload.items()}}
