"""How jobs come about: by name, many at once, from templates and schedules, in workflows. A part of ``App``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack

from holdfast.app import enqueue_many
from holdfast.app.declarations import TemplateMaker
from holdfast.app.handlers import Declared
from holdfast.context import current
from holdfast.engine.job import JobSpec
from holdfast.engine.names import check_name
from holdfast.engine.payload import encode
from holdfast.engine.retry import as_stored_policy
from holdfast.errors import InvalidSetting
from holdfast.features.jobs.handle import Handle
from holdfast.features.payloads.model import NO_RULE
from holdfast.features.schedules.operations import Schedules
from holdfast.features.schedules.templates import Templates
from holdfast.features.workflows.operations import Workflows
from holdfast.features.workflows.run import Extension, WorkflowOptions, WorkflowPlan, extend_workflow, plan_workflow
from holdfast.kind import PAYLOAD_LIMIT, Kind, Options, Prepared, make_spec, pack_payload
from holdfast.stores.ids import new_id
from holdfast.stores.session import Session

R = TypeVar("R")


class Enqueuing:
    client: Session
    kinds: dict[str, Declared]
    all_kinds: Mapping[str, Declared]

    def enqueue(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Enqueue by name, also what is handled elsewhere; arguments are checked where the kind is known."""
        prepared = self._prepare(kind, payload, options)
        return self.client.enqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    async def aenqueue(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        known = self.kinds.get(kind)
        if known is not None and known.kind._rule.store:  # which may be slow
            prepared = await asyncio.to_thread(self._prepare, kind, payload, options)
        else:
            prepared = self._prepare(kind, payload, options)
        return await self.client.aenqueue(prepared.spec, prepared.tenant, prepared.decode, prepared.connection)

    def prepare(self, kind: str, payload: Any = None, **options: Unpack[Options]) -> Prepared[Any]:
        """A call by name that has been checked and not yet been enqueued, for ``enqueue_many``."""
        return self._prepare(kind, payload, options)

    def enqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        """Enqueue many in one transaction a tenant: ``app.enqueue_many(send.prepare(x) for x in …)``.

        Answers in the same order. One that was refused has ``created`` False and says why in ``reason``.
        With a ``connection`` of your own they are all part of the transaction there.
        """
        return enqueue_many.enqueue_many(self.client, calls, connection)

    async def aenqueue_many(self, calls: Iterable[Prepared[R]], *, connection: object | None = None) -> list[Handle[R]]:
        return await enqueue_many.aenqueue_many(self.client, calls, connection)

    def _prepare(self, kind: str, payload: Any, options: Options) -> Prepared[Any]:
        name = check_name(kind, "kind")
        known = self.all_kinds.get(name)
        values = {} if payload is None else payload
        given = "retry" in options
        if known is not None:
            rule = known.kind._rule
            text = known.kind._signature.pack((), values, limit=max(PAYLOAD_LIMIT, self.client.vault.limit(rule)))
            decode: Callable[[Any], Any] = known.kind._signature.unpack_result
            known.kind._check_options(options)
            options = {**known.kind.defaults, **options}
            given = known.kind._firm(given)
        else:
            text, decode, rule = encode(values, limit=PAYLOAD_LIMIT), as_it_is, NO_RULE
            if given:
                as_stored_policy(options["retry"])
        spec, tenant = make_spec(name, text, options, self.client, given)
        pack_payload(spec, tenant, rule, self.client.vault)
        return Prepared(spec, tenant, decode, options.get("connection"))

    def _make(self, kind: str, payload: Any, options: dict[str, Any]) -> JobSpec:
        return self._prepare(kind, payload, Options(**options)).spec  # type: ignore[typeddict-item]

    @property
    def templates(self) -> Templates:
        """Job definitions with a name and versions: ``app.templates.put(…)``, ``.enqueue("name", …)``."""
        return Templates(self.client, TemplateMaker(self.client, self.all_kinds, self._prepare))

    @property
    def schedules(self) -> Schedules:
        """When jobs are made by themselves: ``app.schedules.create(…)``, ``.preview(…)``, ``.history(…)``."""
        return Schedules(self.client, self._make, new_id)

    def workflow(self, kind: str, **options: Unpack[WorkflowOptions]) -> WorkflowPlan:
        """Plan jobs that wait for one another: ``wf = app.workflow("publish"); a = wf.add(fetch, 7);
        wf.add(render, after=a); wf.start()``. ``on_failure`` is what the failure of a job means for those after it:
        ``"skip"`` them, ``"continue"`` all the same, or ``"stop"`` the whole. With a ``key`` it is started once."""
        return plan_workflow(self.client, self._named, kind, options, current())

    @property
    def workflows(self) -> Workflows:
        """Workflows that were started: ``app.workflows.list()``, ``.show(id)``, ``.cancel(id)``, ``.resume(id)``."""
        return Workflows(self.client)

    def extend(self, workflow_id: str) -> Extension:
        """More jobs for a workflow that is not over: ``more = app.extend(id); more.add(…); more.start()``."""
        return extend_workflow(self.client, self._named, workflow_id, self.client.tenant)

    def _named(self, kind: str, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        return self._child(kind, args, options)

    def _child(self, kind: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Prepared[Any]:
        """What ``ctx.spawn`` was asked for: a kind and its arguments, or a name and a payload."""
        if isinstance(kind, Kind):
            return kind.using(**options).prepare(*args)
        if len(args) > 1:
            raise InvalidSetting("a job spawned by name takes one payload", code="conflicting_options")
        return self._prepare(kind, args[0] if args else None, Options(**options))  # type: ignore[typeddict-item]


def as_it_is(value: Any) -> Any:
    return value
