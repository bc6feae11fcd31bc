"""Enqueue by name, many at once, and in workflows; send events. A part of ``App``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from holdfast.app import enqueue_many
from holdfast.app.built_in import ALIASES
from holdfast.app.handlers import Declared
from holdfast.app.workflow_definitions import planned_by, planner
from holdfast.context import Context, current
from holdfast.engine.job import JobSpec
from holdfast.engine.names import check_name, check_options
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.payload import encode
from holdfast.engine.retry import as_stored_policy
from holdfast.errors import InvalidSetting
from holdfast.features.events.model import check_event_name
from holdfast.features.jobs.handle import Handle
from holdfast.features.payloads.model import NO_RULE, Effective, together
from holdfast.features.workflows.run import WorkflowOptions, WorkflowPlan, plan_workflow
from holdfast.kind import PAYLOAD_LIMIT, Kind, Options, Prepared, make_spec, pack_payload
from holdfast.stores.flow import run
from holdfast.stores.ids import new_id
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.requests import SendEvent, SentResult
from holdfast.stores.session import Session

R = TypeVar("R")
P = ParamSpec("P")


_OPTIONS = frozenset(Options.__annotations__)


class Enqueuing(StoreNamespace):
    _session: Session
    _job: Callable[..., Any]
    _kinds: dict[str, Declared]
    _all_kinds: Mapping[str, Declared]

    def enqueue(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Enqueue by name, also kinds handled elsewhere; arguments are checked where the kind is declared."""
        prepared = self._prepare(kind, payload, options)
        return self._session.enqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    async def aenqueue(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        known = self._kinds.get(kind)
        if known is not None and known.kind._rule.store:  # which may be slow
            prepared = await asyncio.to_thread(self._prepare, kind, payload, options)
        else:
            prepared = self._prepare(kind, payload, options)
        return await self._session.aenqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    def prepare(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Prepared[Any]:
        """Check a call by name without enqueuing it, for ``enqueue_many``."""
        return self._prepare(kind, payload, options)

    def enqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        """Enqueue many in one transaction per tenant: ``app.enqueue_many(send.prepare(x) for x in …)``.

        Returns handles in the same order. A refused job has ``created`` False and a ``reason``. With a ``connection``
        of your own, they are all part of the transaction there.
        """
        return enqueue_many.enqueue_many(self._session, calls, connection)

    async def aenqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        return await enqueue_many.aenqueue_many(self._session, calls, connection)

    def _prepare(self, kind: str, payload: Any, options: Options) -> Prepared[Any]:
        name = check_name(kind, "kind")
        if name not in self._kinds:
            name = ALIASES.get(name, name)
        if not options.keys() <= _OPTIONS:
            check_options(options, _OPTIONS)
        known = self._all_kinds.get(name)
        text, rule = self._payload(name, payload)
        decode: Callable[[Any], Any] = as_it_is
        given = "retry" in options
        if known is not None:
            decode = known.kind._signature.unpack_result
            known.kind._check_options(options)
            options = {**known.kind.defaults, **options}
            given = known.kind._firm(given)
        elif given:
            as_stored_policy(options["retry"])
        spec, tenant = make_spec(name, text, options, self._session, given)
        pack_payload(spec, tenant, rule, self._session.vault)
        return Prepared(spec, tenant, decode, options.get("connection"))

    def _payload(self, kind: str, payload: Any, rule: Effective = NO_RULE) -> tuple[str, Effective]:
        """A payload as JSON text, checked against the handler's signature where the kind is known here, and the rule
        that the code declares for it, together with another."""
        known, values = self._all_kinds.get(kind), {} if payload is None else payload
        if known is None:
            return encode(values, limit=max(PAYLOAD_LIMIT, self._session.vault.limit(rule))), rule
        rule = together(known.kind._rule, rule)
        limit = max(PAYLOAD_LIMIT, self._session.vault.limit(rule))
        return known.kind._signature.pack((), values, limit=limit), rule

    def _make(self, kind: str, payload: Any, options: dict[str, Any]) -> JobSpec:
        return self._prepare(kind, payload, Options(**options)).spec  # type: ignore[typeddict-item]

    @overload
    def workflow(self, kind: str, /, **options: Unpack[WorkflowOptions]) -> WorkflowPlan: ...
    @overload
    def workflow(self, function: Callable[Concatenate[WorkflowPlan, P], Any], /) -> Kind[P, str]: ...
    @overload
    def workflow(
        self, kind: None = None, /, **options: Any
    ) -> Callable[[Callable[Concatenate[WorkflowPlan, P], Any]], Kind[P, str]]: ...
    def workflow(self, kind: Any = None, /, **options: Any) -> Any:
        """Plan jobs that depend on one another: ``wf = app.workflow("publish"); a = wf.add(fetch, 7);
        wf.add(render, after=a); wf.start()``. ``on_failure`` says what the failure of a job means for those after it:
        ``"skip"`` them, ``"continue"`` anyway, or ``"stop"`` the workflow. With a ``key`` it is started once.

        Above a function, ``@app.workflow`` declares a kind whose jobs plan and start a workflow:
        ``def nightly(wf: holdfast.WorkflowPlan, day: str) -> None``. It can be scheduled, and enqueued like any kind;
        the result of its job is the id of the workflow. Options are ``name``, ``on_failure`` and those of ``job``.
        """
        kind = options.pop("kind", kind)
        if callable(kind):
            return self._define(kind, None, {})
        if kind is None:
            name = options.pop("name", None)
            return lambda function: self._define(function, name, dict(options))
        return plan_workflow(self._session, self._child, kind, WorkflowOptions(**options), current())  # type: ignore[typeddict-item]

    def _define(self, function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Kind[..., str]:
        named = name or function.__name__
        given = planned_by(options)

        def plan(ctx: Context) -> WorkflowPlan:
            found = plan_workflow(self._session, self._child, named, {**given, "key": ctx.job_id}, ctx)
            found.once = True
            return found

        declared: Kind[..., str] = self._job(named, options)(planner(function, plan))
        return declared

    @operation
    def send_event(
        self,
        name: str,
        data: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
    ) -> Program[SentResult]:
        """Send an event: jobs that wait for it continue. With a ``key`` it is recorded once, however often it is sent;
        with a ``job`` it is for that job alone."""
        if data is not None and not isinstance(data, dict):
            raise InvalidSetting("event data must be a JSON object", code="invalid_event")
        text = encode(data or {}, limit=PAYLOAD_LIMIT, what=f"data of event {name}")
        known = None if key is None else check_name(key, "key", limit=255)
        running = current()
        cause = None if running is None else running.job_id
        event = SendEvent(new_id(), check_event_name(name), text, known, job, cause)
        return (yield from run(self._store.ledger.send(event, self._actor, tenant or self._tenant)))

    asend_event = awaited(send_event)

    def _child(self, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        """What ``ctx.spawn`` was asked for: a kind and its arguments, or a name and a payload."""
        if isinstance(kind, Kind):
            return kind.using(**options).prepare(*args)
        if len(args) > 1:
            raise InvalidSetting("a job spawned by name takes one payload", code="conflicting_options")
        return self._prepare(kind, args[0] if args else None, Options(**options))  # type: ignore[typeddict-item]


def as_it_is(value: Any) -> Any:
    return value
