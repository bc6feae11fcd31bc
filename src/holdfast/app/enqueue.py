"""The part of ``App`` that enqueues jobs by name or in bulk, plans workflows and sends events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, Never, ParamSpec, TypeVar, Unpack, overload

from holdfast.app import enqueue_many
from holdfast.app.built_in import ALIASES
from holdfast.app.handlers import Declared
from holdfast.app.workflow_definitions import planner, pop_workflow_options
from holdfast.context import Context, current
from holdfast.engine.hints import check_options
from holdfast.engine.job import JobSpec
from holdfast.engine.names import NamedKind, check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.payload import encode
from holdfast.engine.retry import as_stored_policy
from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.features.events.model import check_event_name
from holdfast.features.jobs.handle import Handle
from holdfast.features.payloads.model import NO_RULE, Effective, combined
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
_KIND = re.compile(r"[\w.:/@+-]+")
"""What the name of a kind in another program looks like: not like a handler's return value."""


class Enqueuing(StoreNamespace):
    """The part of ``App`` that enqueues jobs, plans workflows and sends events."""

    _session: Session
    _job: Callable[..., Any]
    _kinds: dict[str, Declared]
    _all_kinds: Mapping[str, Declared]

    def enqueue(
        self, kind: str | NamedKind, payload: Any = None, *more: Never, **options: Unpack[Options]
    ) -> Handle[Any]:
        """Enqueue a job by the name of its kind: ``app.enqueue("send", {"to": "a@example.com"}, priority=5)``.

        The kind may be declared in another program. If this app declares it, the arguments are checked and the kind's
        options apply. Raises as ``Kind.enqueue``.
        """
        prepared = self._prepare(kind, payload, options, more)
        return self._session.enqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    async def aenqueue(
        self, kind: str | NamedKind, payload: Any = None, *more: Never, **options: Unpack[Options]
    ) -> Handle[Any]:
        """Enqueue a job by the name of its kind without blocking the event loop; see ``enqueue``."""
        declared = self._kinds.get(kind if isinstance(kind, str) else check_name(kind, "kind"))
        if declared is not None and declared.kind._rule.store:  # writing to the artifact store may block
            prepared = await asyncio.to_thread(self._prepare, kind, payload, options, more)
        else:
            prepared = self._prepare(kind, payload, options, more)
        return await self._session.aenqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    def prepare(
        self, kind: str | NamedKind, payload: Any = None, *more: Never, **options: Unpack[Options]
    ) -> Prepared[Any]:
        """Check the arguments of a job by the name of its kind, and return a call for ``enqueue_many``."""
        return self._prepare(kind, payload, options, more)

    def enqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        """Enqueue many jobs in one transaction per tenant: ``app.enqueue_many(send.prepare(to) for to in addresses)``.

        Returns handles in the same order. The handle of a job that was refused has ``created`` False and a ``reason``.
        Pass your own ``connection`` to make the jobs part of its transaction.
        """
        return enqueue_many.enqueue_many(self._session, calls, connection)

    async def aenqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        """Enqueue many jobs without blocking the event loop; see ``enqueue_many``."""
        return await enqueue_many.aenqueue_many(self._session, calls, connection)

    def _prepare(
        self, kind: str | NamedKind, payload: Any, options: Options, more: tuple[Any, ...] = ()
    ) -> Prepared[Any]:
        name = check_name(kind, "kind")
        if name not in self._kinds:
            name = ALIASES.get(name, name)
        if more:
            raise InvalidArguments(f"{name}: expected one payload, got {len(more) + 1}", fix=self._by_name(name))
        if not options.keys() <= _OPTIONS:
            if payload is None and options.keys() - _OPTIONS <= set(self._parameters(name)):
                raise InvalidArguments(f"{name}: arguments passed as options", fix=self._by_name(name))
            check_options(options, _OPTIONS, fix=self._by_name(name) if payload is None else "")
        declared = self._all_kinds.get(name)
        text, rule = self._payload(name, payload)
        decode: Callable[[Any], Any] = _unchanged
        retry_given = "retry" in options
        if declared is not None:
            decode = declared.kind._signature.unpack_result
            declared.kind._check_options(options)
            options = {**declared.kind.defaults, **options}
            retry_given = declared.kind._overrides_agent_retry(retry_given)
        elif retry_given:
            as_stored_policy(options["retry"])
        spec, tenant = make_spec(name, text, options, self._session, retry_given)
        pack_payload(spec, tenant, rule, self._session.vault)
        return Prepared(spec, tenant, decode, options.get("connection"))

    def _payload(self, kind: str, payload: Any, rule: Effective = NO_RULE) -> tuple[str, Effective]:
        """Return the payload as JSON text, and ``rule`` combined with the rule that the code declares for the kind.

        If the kind is declared here, the payload is checked against the handler's signature.
        """
        declared, values = self._all_kinds.get(kind), {} if payload is None else payload
        if declared is None:
            return encode(values, limit=max(PAYLOAD_LIMIT, self._session.vault.limit(rule))), rule
        if not isinstance(values, Mapping):
            raise InvalidArguments(
                f"{kind}: the payload must be an object with the arguments by name, got {type(values).__name__}",
                fix=self._by_name(kind),
            )
        rule = combined(declared.kind._rule, rule)
        limit = max(PAYLOAD_LIMIT, self._session.vault.limit(rule))
        return declared.kind._signature.pack((), values, limit=limit), rule

    def _parameters(self, kind: str) -> tuple[str, ...]:
        declared = self._all_kinds.get(kind)
        return () if declared is None else declared.kind.parameters

    def _by_name(self, kind: str) -> str:
        """How to pass arguments to a kind that is given by its name."""
        names = ", ".join(f'"{name}": …' for name in self._parameters(kind) or ("x",))
        return f'Pass the arguments as one dict: app.enqueue("{kind}", {{{names}}}).'

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
        """Plan a workflow: jobs that start after the jobs they depend on::

            wf = app.workflow("publish")
            page = wf.add(fetch, 7)
            wf.add(render, after=page)
            run = wf.start()

        ``on_failure`` decides what happens to the jobs after one that failed: ``"skip"`` them, ``"continue"`` anyway,
        or ``"stop"`` the workflow. A ``key`` starts the workflow once, however often the code runs.

        As a decorator, ``@app.workflow`` declares a kind whose jobs plan and start a workflow. It can be scheduled and
        enqueued like any kind; the result of its job is the id of the workflow::

            @app.workflow(on_failure="stop")
            def nightly(wf: holdfast.WorkflowPlan, day: str) -> None:
                wf.add(render, after=wf.add(fetch, day))

        The options of the decorator are ``name``, ``on_failure`` and those of ``job``.
        """
        kind = options.pop("kind", kind)
        if isinstance(kind, Kind):
            raise InvalidSetting(
                f"{kind.name} is a job, not the name of a workflow",
                code="invalid_call",
                fix=f'Add it to a workflow: wf = app.workflow("name"); wf.add({kind.name}, …).',
            )
        if callable(kind):
            return self._define(kind, None, {})
        if kind is None:
            name = options.pop("name", None)
            return lambda function: self._define(function, name, dict(options))
        return plan_workflow(self._session, self._child, kind, WorkflowOptions(**options), current())  # type: ignore[typeddict-item]

    def _define(self, function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Kind[..., str]:
        kind_name = name or function.__name__
        workflow_options = pop_workflow_options(options)

        def plan(ctx: Context) -> WorkflowPlan:
            wf = plan_workflow(self._session, self._child, kind_name, {**workflow_options, "key": ctx.job_id}, ctx)
            wf.once = True
            return wf

        kind: Kind[..., str] = self._job(kind_name, options)(planner(function, plan))
        return kind

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
        """Send an event. Jobs that wait for it continue, and subscriptions to it create jobs.

        ``data`` is a JSON object. With a ``key``, the event is recorded once, however often it is sent. With a ``job``,
        only that job receives it. Raises ``InvalidSetting``, ``Refused``, or ``NotFound`` for an unknown job.
        """
        if data is not None and not isinstance(data, dict):
            raise InvalidSetting("event data must be a JSON object", code="invalid_event")
        text = encode(data or {}, limit=PAYLOAD_LIMIT, what=f"data of event {name}")
        event_key = None if key is None else check_name(key, "key", limit=255)
        context = current()
        cause = None if context is None else context.job_id
        event = SendEvent(new_id(), check_event_name(name), text, event_key, job, cause)
        return (yield from run(self._store.ledger.send(event, self._actor, tenant or self._tenant)))

    asend_event = awaited(send_event)

    def _child(self, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        """Prepare a job for ``ctx.spawn`` and workflows: from a kind and arguments, or from a name and a payload."""
        if isinstance(kind, Kind):
            return kind.using(**options).prepare(*args)
        if len(args) > 1:
            raise InvalidSetting("a job spawned by name takes one payload", code="conflicting_options")
        if isinstance(kind, str) and kind not in self._all_kinds and not _KIND.fullmatch(kind):
            raise InvalidSetting(
                f"{kind[:60]!r} is not the name of a kind",
                code="invalid_name",
                fix="Pass the kind and its arguments without calling it: wf.add(fetch, 1), not wf.add(fetch(1)).",
            )
        return self._prepare(kind, args[0] if args else None, Options(**options))  # type: ignore[typeddict-item]


def _unchanged(value: Any) -> Any:
    return value
