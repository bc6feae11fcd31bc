"""``app.notifiers``: channels that tell people about approvals, dead letters and the health of the system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Unpack

from holdfast.engine.declared import Help, http
from holdfast.engine.job import EVERY_TENANT
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import InvalidSetting, NotFound, Refused
from holdfast.features.notifiers.model import (
    Notifier,
    NotifierDraft,
    NotifierOptions,
    delivery_job,
    subscription_name,
)
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.stores.requests import new_id

if TYPE_CHECKING:
    from holdfast.features.assembly import Store
    from holdfast.features.health.model import Concern, Health

_Notifiers = list[Notifier]  # inside the class, ``list`` is an operation
_COVERED: Final = {"dead_letters": "dead_letters", "approvals_overdue": "approvals"}
"""Reasons of the health that need no message of their own where people are told of each dead letter or approval."""
Name = Annotated[str, Help("The notifier's name.", "NAME", longest=60)]


class Notifiers(StoreNamespace):
    """Notifiers tell people what needs them. A notifier and its subscription are written in one transaction."""

    @operation
    @http(
        "PUT /notifiers/{name}",
        "admin",
        tenant="one",
        example={"channel": "slack", "secrets": ["OPS_SLACK"], "dashboard": "https://jobs.example.com"},
    )
    def set(self, name: Name, **options: Unpack[NotifierOptions]) -> Program[Notifier]:
        """Tell people in Slack, Microsoft Teams, by e-mail or webhook. An option that is not given keeps its value.

        ``app.notifiers.set("ops", channel="slack", secrets="OPS_SLACK", dashboard="https://jobs.example.com")``. The
        URL of the channel is a secret, so ``secrets`` is its name: ``HOLDFAST_SECRET_OPS_SLACK`` in the environment of
        the workers, or one of the secret provider.
        """
        return (yield from run(_update(self._caller, name, options, self._own())))

    aset = awaited(set)

    @operation
    @http("GET /notifiers/{name}", "read")
    def get(self, name: Name) -> Program[Notifier]:
        """Show a notifier."""
        notifier = yield from run(self._store.notifiers.get(name, self._own()))
        if notifier is None:
            raise _missing(name)
        return notifier

    aget = awaited(get)

    @operation
    @http("GET /notifiers", "read")
    def list(self) -> Program[_Notifiers]:
        """List the notifiers by name."""
        return (yield from run(self._store.notifiers.list(self._tenant)))

    alist = awaited(list)

    @operation
    @http("POST /notifiers/{name}/test", "operate", tenant="one", status=202, result="job_id")
    def test(self, name: Name) -> Program[str]:
        """Send a test message, also in quiet hours. Returns the id of the job that sends it."""
        return (yield from run(_test(self._caller, name, self._own())))

    atest = awaited(test)

    @operation
    @http("DELETE /notifiers/{name}", "admin", tenant="one")
    def remove(self, name: Name) -> Program[None]:
        """Remove a notifier. Messages under way are cancelled."""
        if not (yield from run(_remove(self._caller, name, self._own()))):
            raise _missing(name)

    aremove = awaited(remove)

    def _own(self) -> str:
        if self._tenant == EVERY_TENANT:
            raise InvalidSetting("a notifier belongs to one tenant", code="invalid_notifier", fix="Name the tenant.")
        return self._tenant


@flow()
def _update(caller: Caller, name: str, options: NotifierOptions, tenant: str) -> Steps[Notifier]:
    store = caller.store
    draft = NotifierDraft.of(name, (yield from store.notifiers.get(name, tenant).start()), options)
    if draft.escalation is not None and (yield from store.notifiers.get(draft.escalation, tenant).start()) is None:
        raise _missing(draft.escalation)
    notifier = yield from store.notifiers.set(draft, caller.actor, tenant).start()
    subscription = draft.subscription()
    if subscription is None:
        yield from store.subscriptions.remove(subscription_name(name), tenant, caller.actor).start()
    else:
        yield from store.subscriptions.set(subscription, new_id(), caller.actor, tenant).start()
    return notifier


@flow()
def _remove(caller: Caller, name: str, tenant: str) -> Steps[bool]:
    yield from caller.store.subscriptions.remove(subscription_name(name), tenant, caller.actor).start()
    return (yield from caller.store.notifiers.remove(name, caller.actor, tenant).start())


@flow(notifies=True)
def _test(caller: Caller, name: str, tenant: str) -> Steps[str]:
    if (yield from caller.store.notifiers.get(name, tenant).start()) is None:
        raise _missing(name)
    spec = delivery_job(name, {"message": {"type": "test"}}, new_id(), caller.actor)
    (result,) = yield from caller.store.jobs.enqueue([spec], tenant).start()
    if result.id is None:
        raise Refused(result.detail or "the job was refused", code=result.reason)
    return result.id


async def tell_health(store: Store, tenant: str) -> int:
    """Tell the notifiers of a tenant, or of all, that the verdict of the health has changed. Any number of workers may
    do this at once: the one that records the change enqueues the message in the same transaction."""
    told = 0
    verdicts: dict[str, Health] = {}
    for notifier in await store.arun(store.notifiers.list(tenant)):
        if not notifier.enabled or "health" not in notifier.wants:
            continue
        if notifier.tenant not in verdicts:
            verdicts[notifier.tenant] = await store.arun(store.health.get(notifier.tenant))
        reasons = [each for each in verdicts[notifier.tenant].reasons if _COVERED.get(each.code) not in notifier.wants]
        levels = {each.level for each in reasons}
        verdict = next((level for level in ("critical", "warn") if level in levels), "ok")
        if verdict != (notifier.health or "ok"):
            told += await store.arun(_tell(store, notifier, verdict, reasons))
    return told


@flow(notifies=True)
def _tell(store: Store, notifier: Notifier, verdict: str, concerns: Sequence[Concern]) -> Steps[int]:
    if not (yield from store.notifiers.tell_health(notifier.name, notifier.health, verdict, notifier.tenant).start()):
        return 0
    reasons = [{"code": each.code, "level": each.level, "says": each.says, "fix": each.fix} for each in concerns]
    message = {"type": "health", "verdict": verdict, "was": notifier.health or "ok", "reasons": reasons[:20]}
    spec = delivery_job(notifier.name, {"message": message}, new_id(), "health")
    yield from store.jobs.enqueue([spec], notifier.tenant).start()
    return 1


def _missing(name: str) -> NotFound:
    fix = "List them: holdfast notifiers list"
    return NotFound(f"no notifier {name} in this tenant", code="notifier_not_found", fix=fix)
