"""Templates (SC-8), as ``app.templates``: job definitions with a name, versions and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Unpack

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.names import Paging, check_name
from holdfast.errors import Conflict, InvalidSetting, NotFound
from holdfast.features.payloads.model import shown_payload
from holdfast.features.schedules.model import Template, TemplateDraft, together
from holdfast.stores.flow import Flow, Steps, flow
from holdfast.stores.port import Caller
from holdfast.telemetry import tracing

_Templates = list[Template]  # inside the class the word is a method


class Counter(Protocol):
    """What the app lends: checking a payload against a kind it knows, making a job, and handing out its handle."""

    def fits(self, kind: str, payload: Mapping[str, Any]) -> None: ...
    def prepare(self, kind: str, payload: Any, options: dict[str, Any]) -> Any: ...
    def handle(self, answers: Sequence[Enqueued], prepared: Any) -> Any: ...


class Templates:
    """Each call has two colours: the one that begins with ``a`` is awaited."""

    def __init__(
        self, caller: Caller, counter: Counter, version: int | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self._caller = caller
        self._counter = counter
        self._version = version
        self._options = dict(options or {})

    def put(self, name: str, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Template:
        """Define a template, or change it: that is a new version, and the 1,000 newest stay. Repeating it changes
        nothing.

        ``payload`` has defaults, as many as there are. Options are ``queue``, ``priority``, ``tags``, ``agent``,
        ``retry``, ``correlation_id``, ``external_ref``, and ``deadline`` as a duration.
        """
        return _kept(name, kind, self._caller.run(self._put(name, kind, payload, options)))

    async def aput(self, name: str, kind: str, payload: Mapping[str, Any] | None = None, **options: Any) -> Template:
        return _kept(name, kind, await self._caller.arun(self._put(name, kind, payload, options)))

    def get(self, name: str, version: int | None = None) -> Template | None:
        """One version; without a number the newest, unless the template was removed."""
        return _there(self._caller.run(self._get(name, version)), version)

    async def aget(self, name: str, version: int | None = None) -> Template | None:
        return _there(await self._caller.arun(self._get(name, version)), version)

    def list(self, **page: Unpack[Paging]) -> _Templates:
        """The newest version of each, by their names."""
        return self._caller.run(self._listed(page))

    async def alist(self, **page: Unpack[Paging]) -> _Templates:
        return await self._caller.arun(self._listed(page))

    def versions(self, name: str, **page: Unpack[Paging]) -> _Templates:
        """The newest first, as many as are kept; a removal is one of them. A page goes on after
        ``Place(tenant, str(version))``."""
        return self._caller.run(self._versions(name, page))

    async def aversions(self, name: str, **page: Unpack[Paging]) -> _Templates:
        return await self._caller.arun(self._versions(name, page))

    def remove(self, name: str) -> None:
        """No new jobs are made from it; its versions stay, and putting it again makes the next one."""
        if not self._caller.run(self._remove(name)):
            raise not_found(name)

    async def aremove(self, name: str) -> None:
        if not await self._caller.arun(self._remove(name)):
            raise not_found(name)

    def using(self, *, version: int | None = None, **options: Any) -> Templates:
        """With another version than the newest, or other options, for what is enqueued through it."""
        chosen = self._version if version is None else version
        return Templates(self._caller, self._counter, chosen, {**self._options, **options})

    def enqueue(self, name: str, /, **arguments: Any) -> Any:
        """Enqueue a job made from a template; ``arguments`` are on top of its payload. Answers the handle."""
        prepared, answers = self._caller.run(self._enqueue(name, arguments))
        return self._counter.handle(answers, prepared)

    async def aenqueue(self, name: str, /, **arguments: Any) -> Any:
        prepared, answers = await self._caller.arun(self._enqueue(name, arguments))
        return self._counter.handle(answers, prepared)

    def _put(
        self, name: str, kind: str, payload: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> Flow[Template | None]:
        draft = TemplateDraft.of(name, kind, payload, options)
        self._counter.fits(draft.kind, payload or {})
        return self._caller.store.templates.set(draft, self._caller.actor, self._caller.tenant)

    @flow(writes=False)
    def _get(self, name: str, version: int | None) -> Steps[Template | None]:
        found = yield from self._caller.store.templates.get(_named(name), self._caller.tenant, version).start()
        return None if found is None else (yield from self._shown([found]))[0]

    @flow(writes=False)
    def _listed(self, page: Paging) -> Steps[_Templates]:
        found = yield from self._caller.store.templates.list(self._caller.tenant, **page).start()
        return (yield from self._shown(found))

    @flow(writes=False)
    def _versions(self, name: str, page: Paging) -> Steps[_Templates]:
        found = yield from self._caller.store.templates.versions(_named(name), self._caller.tenant, **page).start()
        return (yield from self._shown(found))

    def _shown(self, found: _Templates) -> Steps[_Templates]:
        """Without the payloads of restricted kinds (rule 24): they are for the jobs that are made."""
        rules = yield from self._caller.store.payload_rules.list(self._caller.tenant).start()
        return [
            replace(each, payload=shown_payload(rules, each.tenant, each.kind, each.payload)) if rules else each
            for each in found
        ]

    def _remove(self, name: str) -> Flow[bool]:
        return self._caller.store.templates.remove(_named(name), self._caller.actor, self._caller.tenant)

    @flow(tells=True)
    def _enqueue(self, name: str, arguments: Mapping[str, Any]) -> Steps[tuple[Any, Sequence[Enqueued]]]:
        tenant = self._options.get("tenant", self._caller.tenant)
        if "connection" in self._options:
            raise InvalidSetting("a template is not enqueued on a connection of yours", code="unknown_option")
        found = yield from self._caller.store.templates.get(_named(name), tenant, self._version).start()
        template = _there(found, self._version)
        if template is None:
            raise not_found(name)
        now = yield from self._caller.store.clock.now().start()
        payload, options = together(template, arguments, {}, now)
        prepared = self._counter.prepare(template.kind, payload, {**options, **self._options})
        spec: JobSpec = prepared.spec
        tracing.stamp([spec], tracing.current_trace())
        answers = yield from self._caller.store.templates.enqueue(
            [spec], template.name, template.version, tenant
        ).start()
        return prepared, answers


def not_found(name: str) -> NotFound:
    return NotFound(
        f"there is no template {name} in this tenant",
        code="template_not_found",
        fix="Make it: app.templates.put(…), or holdfast templates put",
    )


def _kept(name: str, kind: str, template: Template | None) -> Template:
    if template is None:
        raise Conflict(
            f"template {name} makes jobs of another kind than {kind}",
            code="template_kind",
            fix="Another kind is another template: give it another name.",
        )
    return template


def _there(template: Template | None, version: int | None) -> Template | None:
    return None if template is not None and template.removed and version is None else template


def _named(name: str) -> str:
    return check_name(name, "template")
