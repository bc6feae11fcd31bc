"""``app.templates``: job definitions with a name, versions and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Unpack

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.names import Paging, check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import Conflict, InvalidSetting, NotFound
from holdfast.features.payloads.model import shown_payload
from holdfast.features.schedules.model import Template, TemplateDraft, job_arguments
from holdfast.stores.flow import Steps, flow, run
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.telemetry import tracing

_Templates = list[Template]  # inside the class, ``list`` is an operation


class JobMaker(Protocol):
    """The part of the app that checks a payload against a known kind, makes a job, and makes its handle."""

    def fits(self, kind: str, payload: Mapping[str, Any]) -> None: ...
    def prepare(self, kind: str, payload: Any, options: dict[str, Any]) -> Any: ...
    def handle(self, answers: Sequence[Enqueued], prepared: Any) -> Any: ...


class Templates(StoreNamespace):
    """Job definitions with a name, versions and defaults."""

    def __init__(
        self, caller: Caller, maker: JobMaker, version: int | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(caller)
        self._maker = maker
        self._version = version
        self._options = dict(options or {})

    @operation
    def set(
        self, /, name: str, kind: str, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> Program[Template]:
        """Define a template, or change it. A change makes a new version; the newest 1,000 are kept. Setting the same
        definition again changes nothing.

        ``payload`` has default arguments, not necessarily all. Options are ``queue``, ``priority``, ``tags``,
        ``agent``, ``executor``, ``retry``, ``correlation_id``, ``external_ref``, and ``deadline`` as a duration.
        """
        draft = TemplateDraft.of(name, kind, payload, options)
        self._maker.fits(draft.kind, payload or {})
        template = yield from run(self._store.templates.set(draft, self._actor, self._tenant))
        if template is None:
            raise Conflict(
                f"template {name} is for another kind than {kind}",
                code="template_kind",
                fix="Create another template for another kind.",
            )
        return template

    aset = awaited(set)

    @operation
    def get(self, name: str, version: int | None = None) -> Program[Template]:
        """One version, or the newest one without a number. ``NotFound`` if there is none, or the template was
        removed."""
        template = _usable((yield from run(self._get(name, version))), version)
        if template is None:
            raise not_found(name)
        return template

    aget = awaited(get)

    @operation
    def list(self, **page: Unpack[Paging]) -> Program[_Templates]:
        """The newest version of each template, by name."""
        return (yield from run(self._listed(page)))

    alist = awaited(list)

    @operation
    def versions(self, name: str, **page: Unpack[Paging]) -> Program[_Templates]:
        """Versions of a template, newest first, including removals. A page continues after ``Place(tenant,
        str(version))``."""
        return (yield from run(self._versions(name, page)))

    aversions = awaited(versions)

    @operation
    def remove(self, name: str) -> Program[None]:
        """Stop making jobs from a template. Its versions stay; setting it again makes the next version."""
        if not (yield from run(self._store.templates.remove(_checked(name), self._actor, self._tenant))):
            raise not_found(name)

    aremove = awaited(remove)

    def using(self, *, version: int | None = None, **options: Any) -> Templates:
        """The same namespace with another version than the newest, or with other options, for ``enqueue``."""
        chosen = self._version if version is None else version
        return Templates(self._caller, self._maker, chosen, {**self._options, **options})

    @operation
    def enqueue(self, name: str, /, **arguments: Any) -> Program[Any]:
        """Enqueue a job made from a template; ``arguments`` override those of its payload. Returns the handle."""
        prepared, answers = yield from run(self._enqueue(name, arguments))
        return self._maker.handle(answers, prepared)

    aenqueue = awaited(enqueue)

    @flow(writes=False)
    def _get(self, name: str, version: int | None) -> Steps[Template | None]:
        template = yield from self._store.templates.get(_checked(name), self._tenant, version).start()
        return None if template is None else (yield from self._redacted([template]))[0]

    @flow(writes=False)
    def _listed(self, page: Paging) -> Steps[_Templates]:
        return (yield from self._redacted((yield from self._store.templates.list(self._tenant, **page).start())))

    @flow(writes=False)
    def _versions(self, name: str, page: Paging) -> Steps[_Templates]:
        versions = yield from self._store.templates.versions(_checked(name), self._tenant, **page).start()
        return (yield from self._redacted(versions))

    def _redacted(self, templates: _Templates) -> Steps[_Templates]:
        """The templates without the payloads of restricted kinds: only their jobs see those."""
        rules = yield from self._store.payload_rules.list(self._tenant).start()
        if not rules:
            return templates
        return [replace(t, payload=shown_payload(rules, t.tenant, t.kind, t.payload)) for t in templates]

    @flow(notifies=True)
    def _enqueue(self, name: str, arguments: Mapping[str, Any]) -> Steps[tuple[Any, Sequence[Enqueued]]]:
        tenant = self._options.get("tenant", self._tenant)
        if "connection" in self._options:
            raise InvalidSetting("a template cannot be enqueued on your own connection", code="unknown_option")
        stored = yield from self._store.templates.get(_checked(name), tenant, self._version).start()
        template = _usable(stored, self._version)
        if template is None:
            raise not_found(name)
        now = yield from self._store.clock.now().start()
        payload, options = job_arguments(template, arguments, {}, now)
        prepared = self._maker.prepare(template.kind, payload, {**options, **self._options})
        spec: JobSpec = prepared.spec
        tracing.stamp([spec], tracing.current_trace())
        answers = yield from self._store.templates.enqueue([spec], template.name, template.version, tenant).start()
        return prepared, answers


def not_found(name: str) -> NotFound:
    return NotFound(
        f"no template {name} in this tenant",
        code="template_not_found",
        fix="Create it with app.templates.set(…) or holdfast templates put.",
    )


def _usable(template: Template | None, version: int | None) -> Template | None:
    """None for a removed template, unless a version was requested."""
    return None if template is not None and template.removed and version is None else template


def _checked(name: str) -> str:
    return check_name(name, "template")
