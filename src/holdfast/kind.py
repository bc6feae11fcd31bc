"""A job kind: a handler, its name and its defaults, with an ``enqueue`` that has the handler's own signature."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack

from holdfast import context
from holdfast.engine.ids import parse_id
from holdfast.engine.job import DEFAULT_QUEUE, DEFAULT_RETRY, Dedupe, JobSpec, References
from holdfast.engine.names import check_name, check_options, content_hash
from holdfast.engine.order import check_priority
from holdfast.engine.payload import decode
from holdfast.engine.retry import Retry, as_policy, as_stored_policy
from holdfast.engine.times import instant_or_none
from holdfast.engine.trace import Trace, retagged
from holdfast.engine.units import Duration, seconds
from holdfast.errors import InvalidSetting
from holdfast.features.jobs.handle import Handle
from holdfast.features.limits.model import uses
from holdfast.features.payloads.model import NO_RULE, Effective
from holdfast.steps.approvals import Asking
from holdfast.steps.signature import Signature
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault

P = ParamSpec("P")
R = TypeVar("R")

PAYLOAD_LIMIT = 1_048_576

RetryAs = Literal["new_job"]


class Options(TypedDict, total=False):
    """What ``using`` takes. ``dedupe`` is by content: "skip" while an equal job is active, "coalesce" while one
    has not been started. ``executor`` is the label of the workers that may run it. With ``retry_as="new_job"`` each
    retry is a job of its own. ``trace`` is a W3C traceparent in place of the current one; what is malformed is none.
    ``connection`` is the caller's own: the job exists if the transaction there commits."""

    delay: Duration
    run_at: datetime
    deadline: datetime
    queue: str
    priority: int
    key: str
    dedupe: Dedupe
    tags: Sequence[str]
    tenant: str
    parent: str
    correlation_id: str
    causation_id: str
    workflow_id: str
    external_ref: str
    agent: str
    executor: str
    limit_key: str | None
    resources: Sequence[str]
    retry: Retry | str
    retry_as: RetryAs
    enqueued_by: str
    source_ref: str
    target_ref: str
    payload_ref: str
    trace: str
    connection: object


@dataclass(frozen=True, slots=True)
class Prepared(Generic[R]):
    """A checked call that is not enqueued yet, for ``app.enqueue_many``."""

    spec: JobSpec
    tenant: str
    decode: Callable[[Any], R]
    connection: object | None = None


@dataclass(frozen=True, slots=True)
class Kind(Generic[P, R]):
    """A kind of job, made by ``@app.job``: the handler with its name and defaults. Calling it calls the handler itself,
    as ordinary code."""

    name: str
    _session: Session = dataclasses.field(repr=False)
    _signature: Signature = dataclasses.field(repr=False)
    function: Callable[..., Any] = dataclasses.field(repr=False)
    defaults: Options = dataclasses.field(default_factory=Options)
    _at_most_once: bool = False
    _approval: Asking | None = None
    """The question to ask people before a job of this kind runs."""
    _retry_given: bool = False
    _rule: Effective = NO_RULE
    """The payload rules that the code declares for this kind."""
    # The fields that every job of this kind shares, filled when the first one has been made and checked.
    _fixed: dict[str, Any] = dataclasses.field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> Kind[P, R]:
        """The same kind with other options: ``send.using(delay=300, key="r-7").enqueue(…)``."""
        check_options(options, Options.__annotations__)
        self._check_options(options)
        given = self._retry_given or "retry" in options
        return dataclasses.replace(self, defaults={**self.defaults, **options}, _retry_given=given)

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

    def _firm(self, given: bool) -> bool:
        """Whether the job's retry policy takes precedence over its agent's."""
        return given or self._at_most_once

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a job with these arguments, which are those of the handler."""
        prepared = self.prepare(*args, **kwargs)
        return self._session.enqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The async form of ``enqueue``."""
        if self._rule.store:  # the artifact store may be slow
            prepared = await asyncio.to_thread(self.prepare, *args, **kwargs)
        else:
            prepared = self.prepare(*args, **kwargs)
        return await self._session.aenqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    def handle(self, job_id: str) -> Handle[R]:
        """The handle of an existing job of this kind. Its result has the handler's return type."""
        tenant = self.defaults.get("tenant", self._session.tenant)
        return Handle(parse_id(job_id), tenant, False, None, self._session, self._signature.unpack_result)

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared[R]:
        """Check the arguments without enqueueing, for ``app.enqueue_many``."""
        vault = self._session.vault
        plain = vault.keys is None and self._rule is NO_RULE  # nearly always
        payload = self._signature.pack(args, kwargs, limit=PAYLOAD_LIMIT if plain else vault.limit(self._rule))
        fixed = self._fixed
        if not fixed or context.current_run() is not None:
            spec, tenant = make_spec(self.name, payload, self.defaults, self._session, self._firm(self._retry_given))
            if "dedupe" not in self.defaults and context.current_run() is None:
                fixed.update(_without(spec, "id", "payload"))
                if spec.key is None and spec.parent_id is None and spec.references is None:
                    fixed["alike"] = fixed
        else:
            spec, tenant = (
                JobSpec(id=new_id(), payload=payload, **fixed),
                self.defaults.get("tenant", self._session.tenant),
            )
        if not plain:
            pack_payload(spec, tenant, self._rule, vault)
        return Prepared(spec, tenant, self._signature.unpack_result, self.defaults.get("connection"))


def pack_payload(spec: JobSpec, tenant: str, rule: Effective, vault: Vault) -> None:
    """Judge the payload by what the code declares, and seal or store it; the database judges by its own rules."""
    text = spec.payload
    spec.payload = vault.pack(text, rule, what="payload", kind=spec.kind, tenant=tenant, job_id=spec.id)
    if spec.payload is not text:
        spec.payload_hash = vault.digest(text)


def make_spec(
    kind: str, payload: str, options: Options, client: Session, retry_given: bool = False
) -> tuple[JobSpec, str]:
    """Check the options and put the job together. Inside a handler a new job is the running one's child (DP-10)."""
    parent = context.current_run()
    # A blank tenant is a mistake somewhere, and must not end up as the default one.
    tenant = check_name(options.get("tenant", client.tenant), "tenant")
    parent_id = options.get("parent")
    if parent_id is None and parent is not None and parent.claim.tenant == tenant:
        parent_id = parent.claim.id
    if parent is not None and options.get("connection") is None:
        parent.completion.check_no_block(client.store.embedded)
    dedupe = options.get("dedupe")
    if dedupe not in (None, "skip", "coalesce"):
        raise InvalidSetting(f"dedupe must be skip or coalesce, not {dedupe!r}", code="invalid_dedupe")
    delay = options.get("delay")
    spec = JobSpec(
        id=new_id(),
        kind=kind,
        payload=payload,
        queue=check_name(options.get("queue", DEFAULT_QUEUE), "queue"),
        priority=check_priority(options.get("priority", 0)),
        delay=None if delay is None else seconds(delay, "delay"),
        run_at=instant_or_none(options.get("run_at"), "run_at"),
        deadline_at=instant_or_none(options.get("deadline"), "deadline"),
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
        uses=uses(options.get("limit_key"), options.get("resources", ())),
        references=_references(options),
        enqueued_by=_text(options.get("enqueued_by"), "enqueued_by")
        or (f"job {parent.claim.id}" if parent else client.actor),
        source_system=client.name,
    )
    if spec.delay is not None and spec.run_at is not None:
        raise InvalidSetting("pass delay or run_at, not both", code="conflicting_options")
    return spec, tenant


def _references(options: Options) -> References | None:
    given = [options.get(name) for name in ("source_ref", "target_ref", "payload_ref")]
    if given == [None, None, None]:
        return None
    return References(*(None if ref is None else check_name(ref, "reference", limit=4_000) for ref in given))


def check_retry_as(value: object) -> str | None:
    if value is None or value == "new_job":
        return value
    raise InvalidSetting(f"retry_as must be new_job or None, not {value!r}", code="invalid_retry")


def _without(spec: JobSpec, *names: str) -> dict[str, Any]:
    return {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.name not in names}


def _tags(values: object) -> tuple[str, ...]:
    # Text is a sequence too, of letters.
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidSetting("tags must be a list of text", code="invalid_name")
    return tuple(check_name(tag, "tag") for tag in values)


def _traced(tags: tuple[str, ...], parent: str | None) -> tuple[str, ...]:
    trace = None if parent is None else Trace.parse(parent)
    return tags if trace is None else retagged(tags, trace)


def _text(value: object, what: str) -> str | None:
    return None if value is None else check_name(value, what, limit=255)
