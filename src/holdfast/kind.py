"""``Kind``: a handler with its name and its default options. Its ``enqueue`` has the signature of the handler."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from holdfast import context
from holdfast.engine.hints import ATTRIBUTES, OPTIONS, check_options, no_attribute, option_hint
from holdfast.engine.ids import parse_id
from holdfast.engine.job import DEFAULT_QUEUE, DEFAULT_RETRY, Enqueued, JobSpec, References
from holdfast.engine.job_options import EnqueueOptions
from holdfast.engine.names import check_name, content_hash
from holdfast.engine.order import check_priority
from holdfast.engine.payload import decode
from holdfast.engine.retry import as_policy, as_stored_policy
from holdfast.engine.times import instant
from holdfast.engine.trace import Trace, retagged
from holdfast.engine.units import seconds
from holdfast.errors import Conflict, InvalidArguments, InvalidSetting, NotFound, Refused
from holdfast.features.jobs.handle import Handle
from holdfast.features.limits.model import uses
from holdfast.features.payloads.model import NO_RULE, Effective
from holdfast.steps.approvals import ApprovalOptions
from holdfast.steps.signature import Signature
from holdfast.stores.requests import new_id
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault

P = ParamSpec("P")
R = TypeVar("R")

PAYLOAD_LIMIT = 1_048_576


class Options(EnqueueOptions, total=False):
    """Options of one job: ``send.using(delay="5m").enqueue(…)``, ``app.enqueue("send", …, priority=5)``."""

    tenant: str
    """The tenant. By default the app's; inside a handler, the tenant of the running job."""
    workflow_id: str
    """The workflow that the job belongs to. By default the parent's."""
    enqueued_by: str
    """Recorded as the caller. By default the app's setting; inside a handler ``job <id>``."""
    trace: str
    """A W3C traceparent to use instead of the current trace. A malformed one is ignored."""
    connection: object
    """Your own database connection. The job exists if your transaction commits."""


@dataclass(slots=True)
class Prepared(Generic[R]):
    """A call whose arguments are checked and which is not enqueued yet, for ``app.enqueue_many``."""

    made: JobSpec | None
    tenant: str
    decode: Callable[[Any], R]
    connection: object | None = None
    payload: str = ""
    shared: Mapping[str, Any] | None = None
    """With the payload, what ``spec`` is made of when it is read. Bulk enqueues need only the payload."""
    id: str | None = None

    @property
    def spec(self) -> JobSpec:
        if self.made is None:
            self.made = JobSpec(id=self.id or new_id(), payload=self.payload, **self.shared or {})
        return self.made

    def enqueue(self, session: Session) -> Handle[R]:
        return self.accepted(session.enqueue([self.spec], self.tenant, self.connection), session)

    async def aenqueue(self, session: Session) -> Handle[R]:
        return self.accepted(await session.aenqueue([self.spec], self.tenant, self.connection), session)

    def accepted(self, results: Sequence[Enqueued], session: Session) -> Handle[R]:
        """Return the handle of the one job; raise if it was refused."""
        (result,) = results
        if result.created:
            return self.handle(result, session)
        if result.reason == "idempotency_conflict":
            raise Conflict(
                f"job {result.id} was enqueued under this key with another payload",
                code="idempotency_conflict",
                fix="Use another key, or the same arguments.",
            )
        if result.reason == "parent_not_found":
            raise NotFound("the parent job does not exist in this tenant", code="parent_not_found")
        if result.id is None:
            raise Refused(result.detail or "the job was refused", code=result.reason)
        return self.handle(result, session)

    def handle(self, result: Enqueued, session: Session) -> Handle[R]:
        return Handle(result.id or "", self.tenant, result.created, result.reason, session, self.decode, result.detail)


@dataclass(frozen=True, slots=True)
class Kind(Generic[P, R]):
    """A kind of job: the handler with its name and default options. ``@app.job`` makes it::

        @app.job(queue="mail")
        async def send(to: str, invoice: int) -> str: ...

        handle = send.enqueue("a@example.com", invoice=7)
        receipt = handle.result(timeout="1m")

    Calling the kind, ``send(…)``, calls the handler directly, without a job.
    """

    name: str
    """The name of the kind."""
    _session: Session = dataclasses.field(repr=False)
    _signature: Signature = dataclasses.field(repr=False)
    function: Callable[..., Any] = dataclasses.field(repr=False)
    """The handler."""
    defaults: Options = dataclasses.field(default_factory=Options)
    """Options of its jobs, unless ``using`` or ``enqueue`` sets others."""
    _at_most_once: bool = False
    _approval: ApprovalOptions | None = None
    """Options of the approval that jobs of this kind need before they run."""
    _retry_given: bool = False
    _rule: Effective = NO_RULE
    """The payload rules that the code declares for this kind."""
    # The fields that all jobs of this kind share. Filled when the first job has been made and checked.
    _shared_fields: dict[str, Any] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Kind({self.name!r}, queue={self.defaults.get('queue', DEFAULT_QUEUE)!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("Kind", self, name, self.function.__name__ if name in ATTRIBUTES["Kind"] else "")

    def using(self, **options: Unpack[Options]) -> Kind[P, R]:
        """Return the kind with other options: ``send.using(delay="5m", key="order-7").enqueue(…)``.

        ``Options`` lists them. Raises ``InvalidSetting`` for an unknown option.
        """
        if not options.keys() <= Options.__annotations__.keys():
            check_options(options, Options.__annotations__)
        self._check_options(options)
        retry_given = self._retry_given or "retry" in options
        return dataclasses.replace(self, defaults={**self.defaults, **options}, _retry_given=retry_given)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the handler's parameters, without the context."""
        return self._signature.names

    def _check_options(self, options: Options) -> None:
        """Refuse a retry policy that cannot be stored, or that contradicts ``at_most_once``."""
        if "retry" in options:
            as_stored_policy(options["retry"])
            if self._at_most_once:
                raise InvalidSetting(
                    f"{self.name} starts at most once; it cannot have a retry policy", code="conflicting_options"
                )

    def _overrides_agent_retry(self, retry_given: bool) -> bool:
        """Whether the job's retry policy takes precedence over its agent's."""
        return retry_given or self._at_most_once

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a job with the handler's arguments and return its ``Handle``.

        Raises ``InvalidArguments`` or ``InvalidPayload`` if the arguments do not fit; ``Conflict`` if a job with the
        same ``key`` and another payload exists; ``Refused`` if a rule forbids the job.
        """
        return self.prepare(*args, **kwargs).enqueue(self._session)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a job without blocking the event loop; see ``enqueue``."""
        if self._rule.store:  # writing to the artifact store may block
            prepared = await asyncio.to_thread(self.prepare, *args, **kwargs)
        else:
            prepared = self.prepare(*args, **kwargs)
        return await prepared.aenqueue(self._session)

    def handle(self, job_id: str) -> Handle[R]:
        """Return the handle of an existing job of this kind. It reads nothing until you call it."""
        tenant = self.defaults.get("tenant", self._session.tenant)
        return Handle(parse_id(job_id), tenant, False, None, self._session, self._signature.unpack_result)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared[R]:
        """Check the arguments and return a call for ``app.enqueue_many``. Nothing is stored yet."""
        vault = self._session.vault
        plain = vault.keys is None and self._rule is NO_RULE  # the common case
        try:
            payload = self._signature.pack(args, kwargs, limit=PAYLOAD_LIMIT if plain else vault.limit(self._rule))
        except InvalidArguments as error:
            raise self._explained(error, kwargs) from None
        shared = self._shared_fields
        if plain and shared and context.current_run() is None:
            tenant = self.defaults.get("tenant", self._session.tenant)
            connection = self.defaults.get("connection")
            return Prepared(None, tenant, self._signature.unpack_result, connection, payload, shared)
        if not shared or context.current_run() is not None:
            retry_given = self._overrides_agent_retry(self._retry_given)
            spec, tenant = make_spec(self.name, payload, self.defaults, self._session, retry_given)
            if "dedupe" not in self.defaults and context.current_run() is None:
                shared.update(_without(spec, "id", "payload"))
                if spec.key is None and spec.parent_id is None and spec.references is None:
                    shared["alike"] = shared
        else:
            spec, tenant = (
                JobSpec(id=new_id(), payload=payload, **shared),
                self.defaults.get("tenant", self._session.tenant),
            )
        if not plain:
            pack_payload(spec, tenant, self._rule, vault)
        return Prepared(spec, tenant, self._signature.unpack_result, self.defaults.get("connection"))

    def _explained(self, error: InvalidArguments, kwargs: Mapping[str, Any]) -> InvalidArguments:
        """The error, with a hint if an argument is the name of an option or misspelled."""
        hints, options = [], Options.__annotations__
        for name in sorted(kwargs.keys() - set(self.parameters)):
            if name in options:
                hints.append(f"{name} is an option: {self.function.__name__}.using({name}=…).enqueue(…).")
            elif name in OPTIONS and (hint := option_hint(name, options)):
                hints.append(f"{hint} Options go into using(…).")
            elif close := get_close_matches(name, self.parameters, 1):
                hints.append(f"Did you mean {close[0]}?")
        return InvalidArguments(error.message, fix=" ".join(hints)) if hints else error


def pack_payload(spec: JobSpec, tenant: str, rule: Effective, vault: Vault) -> None:
    """Apply the payload rules that the code declares: check the size, then encrypt or store the payload.

    The database applies its own rules when the job is stored.
    """
    text = spec.payload
    spec.payload = vault.pack(text, rule, what="payload", kind=spec.kind, tenant=tenant, job_id=spec.id)
    if spec.payload is not text:
        spec.payload_hash = vault.digest(text)


def make_spec(
    kind: str, payload: str, options: Options, client: Session, retry_given: bool = False
) -> tuple[JobSpec, str]:
    """Check the options and return the job and its tenant. Inside a handler, the running job is the parent."""
    parent = context.current_run()
    # A blank tenant is a mistake of the caller; it must not become the default tenant.
    tenant = check_name(options.get("tenant", client.tenant), "tenant")
    parent_id = options.get("parent")
    if parent_id is None and parent is not None and parent.claim.tenant == tenant:
        parent_id = parent.claim.id
    if parent is not None and options.get("connection") is None:
        parent.completion.check_no_block(client.store.embedded)
    dedupe = options.get("dedupe")
    if dedupe not in (None, "skip", "coalesce"):
        raise InvalidSetting(f"dedupe must be skip or coalesce, not {dedupe!r}", code="invalid_dedupe")
    delay, run_at, deadline = options.get("delay"), options.get("run_at"), options.get("deadline")
    limit_key, resources = options.get("limit_key"), options.get("resources", ())
    spec = JobSpec(
        id=new_id(),
        kind=kind,
        payload=payload,
        queue=check_name(options.get("queue", DEFAULT_QUEUE), "queue"),
        priority=check_priority(options.get("priority", 0)),
        delay=None if delay is None else seconds(delay, "delay"),
        run_at=None if run_at is None else instant(run_at, "run_at"),
        deadline_at=instant(deadline, "deadline") if isinstance(deadline, datetime) else None,
        deadline_in=None if deadline is None or isinstance(deadline, datetime) else seconds(deadline, "deadline"),
        retry=as_policy(options.get("retry", DEFAULT_RETRY)),
        retry_given=retry_given,
        retry_as=check_retry_as(options.get("retry_as")),
        key=_text(options.get("key"), "key"),
        content_key=client.vault.keyed(content_hash(kind, tenant, decode(payload))) if dedupe else None,
        dedupe=dedupe,
        tags=_traced(_tags(options.get("tags", ())), options.get("trace")),
        agent=_text(options.get("agent"), "agent"),
        executor=None if options.get("executor") is None else check_name(options.get("executor"), "executor"),
        correlation_id=_text(options.get("correlation_id"), "correlation_id"),
        causation_id=_text(options.get("causation_id"), "causation_id"),
        parent_id=None if parent_id is None else parse_id(parent_id),
        workflow_id=None if options.get("workflow_id") is None else parse_id(options.get("workflow_id")),
        external_ref=_text(options.get("external_ref"), "external_ref"),
        uses=() if limit_key is None and resources == () else uses(limit_key, resources),
        references=_references(options),
        enqueued_by=_text(options.get("enqueued_by"), "enqueued_by")
        or (f"job {parent.claim.id}" if parent else client.actor),
        source_system=client.name,
    )
    if spec.delay is not None and spec.run_at is not None:
        raise InvalidSetting("pass delay or run_at, not both", code="conflicting_options")
    return spec, tenant


def _references(options: Options) -> References | None:
    uris = [options.get(name) for name in ("source_ref", "target_ref", "payload_ref")]
    if uris == [None, None, None]:
        return None
    return References(*(None if uri is None else check_name(uri, "reference", limit=4_000) for uri in uris))


def check_retry_as(value: object) -> str | None:
    if value is None or value == "new_job":
        return value
    raise InvalidSetting(f"retry_as must be new_job or None, not {value!r}", code="invalid_retry")


def _without(spec: JobSpec, *names: str) -> dict[str, Any]:
    return {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.name not in names}


def _tags(values: object) -> tuple[str, ...]:
    # A str is iterable too: its letters would become tags.
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidSetting("tags must be a list of text", code="invalid_name")
    return tuple(check_name(tag, "tag") for tag in values)


def _traced(tags: tuple[str, ...], parent: str | None) -> tuple[str, ...]:
    trace = None if parent is None else Trace.parse(parent)
    return tags if trace is None else retagged(tags, trace)


def _text(value: object, what: str) -> str | None:
    return None if value is None else check_name(value, what, limit=255)
