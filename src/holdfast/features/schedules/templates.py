"""``app.templates``: job definitions with a name, versions and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Protocol, Unpack

from holdfast.engine.declared import Help, http
from holdfast.engine.job import Enqueued, JobSpec
from holdfast.engine.job_options import TemplateOptions
from holdfast.engine.names import NamedKind, Paging, check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.errors import Conflict, InvalidSetting, NotFound
from holdfast.features.payloads.model import shown_payload
from holdfast.features.schedules.model import Payload, Template, TemplateDraft, job_arguments
from holdfast.stores.flow import Steps, flow, run, transaction
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.port import Caller
from holdfast.telemetry import observers

Name = Annotated[str, Help("The template's name.", "NAME")]
Arguments = Annotated[
    Any, Help("Arguments to add to those of the template.", cli="Arguments to add: JSON, @file, or - for stdin.")
]
Version = Annotated[int | None, Help("Version to use; default: the newest.", low=1, high=2**31 - 1)]

_Templates = list[Template]  # inside the class, ``list`` is an operation


class JobMaker(Protocol):
    """The part of the app that checks a payload against a known kind, makes a job, and makes its handle."""

    def fits(self, kind: str, payload: Mapping[str, Any]) -> None: ...
    def prepare(self, kind: str, payload: Any, options: dict[str, Any]) -> Any: ...
    def handle(self, answers: Sequence[Enqueued], prepared: Any) -> Any: ...


class Templates(StoreNamespace):
    """Job definitions with a name, versions and defaults."""

    def __init__(
        self,
        caller: Caller,
        maker: JobMaker | None = None,
        version: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """``maker`` is for the operations that create jobs or check them."""
        super().__init__(caller)
        self._maker = maker
        self._version = version
        self._options = dict(options or {})

    @operation
    @http(
        "PUT /templates/{name}",
        "operate",
        tenant="one",
        example={"kind": "report", "payload": {"format": "pdf"}, "queue": "reports"},
    )
    def set(
        self,
        /,
        name: Name,
        kind: Annotated[str | NamedKind, Help("Job kind to enqueue.", "KIND", wire=str)],
        payload: Payload = None,
        **options: Unpack[TemplateOptions],
    ) -> Program[Template]:
        """Create a template or a new version of it. Older versions stay. Setting the same definition again changes
        nothing.

        ``payload`` has default arguments, not necessarily all. The newest 1,000 versions are kept.
        """
        draft = TemplateDraft.of(name, kind, payload, options)
        assert self._maker is not None
        self._maker.fits(draft.kind, payload or {})
        template = yield from run(self._store.templates.set(draft, self._actor, self._tenant))
        if template is None:
            raise Conflict(
                f"template {name} is for another kind than {draft.kind}",
                code="template_kind",
                fix="Create another template for another kind.",
            )
        return template

    aset = awaited(set)

    @operation
    @http("GET /templates/{name}", "read", name="show_template")
    @transaction(writes=False)
    def get(self, name: Name, version: Version = None) -> Steps[Template]:
        """Show a version of a template; without a number, the newest.

        ``NotFound`` if there is none, or the template was removed.
        """
        template = yield from self._usable(name, version, self._tenant)
        return (yield from self._redacted([template]))[0]

    aget = awaited(get)

    @operation
    @http("GET /templates", "read")
    @transaction(writes=False)
    def list(self, **page: Unpack[Paging]) -> Steps[_Templates]:
        """List templates in their newest versions, by name."""
        return (yield from self._redacted((yield from self._store.templates.list(self._tenant, **page).start())))

    alist = awaited(list)

    @operation
    @http("GET /templates/{name}/versions", "read", name="template_versions", page="version")
    @transaction(writes=False)
    def versions(self, name: Name, **page: Unpack[Paging]) -> Steps[_Templates]:
        """List the versions of a template, newest first, including removals."""
        versions = yield from self._store.templates.versions(_checked(name), self._tenant, **page).start()
        if not versions and page.get("after") is None:
            raise _not_found(name)
        return (yield from self._redacted(versions))

    aversions = awaited(versions)

    @operation
    @http("DELETE /templates/{name}", "operate", tenant="one")
    def remove(self, name: Name) -> Program[None]:
        """Remove a template from use. Its versions stay readable; setting it again makes the next version."""
        if not (yield from run(self._store.templates.remove(_checked(name), self._actor, self._tenant))):
            raise _not_found(name)

    aremove = awaited(remove)

    def using(self, *, version: int | None = None, **options: Any) -> Templates:
        """The same namespace with another version than the newest, or with other options, for ``enqueue``."""
        chosen = self._version if version is None else version
        return Templates(self._caller, self._maker, chosen, {**self._options, **options})

    @operation
    @http("POST /templates/{name}/enqueue", "enqueue", tenant="one", by_hand=True)
    def enqueue(self, name: Name, /, **arguments: Arguments) -> Program[Any]:
        """Enqueue a job from a template; ``arguments`` override those of its payload. Returns the handle."""
        assert self._maker is not None
        prepared, answers = yield from run(self._enqueue(self._maker, name, arguments))
        return self._maker.handle(answers, prepared)

    aenqueue = awaited(enqueue)

    @flow(notifies=True)
    def _enqueue(
        self, maker: JobMaker, name: str, arguments: Mapping[str, Any]
    ) -> Steps[tuple[Any, Sequence[Enqueued]]]:
        tenant = self._options.get("tenant", self._tenant)
        if "connection" in self._options:
            raise InvalidSetting("a template cannot be enqueued on your own connection", code="unknown_option")
        template = yield from self._usable(name, self._version, tenant)
        now = yield from self._store.clock.now().start()
        payload, options = job_arguments(template, arguments, {}, now)
        prepared = maker.prepare(template.kind, payload, {**options, **self._options})
        spec: JobSpec = prepared.spec
        observers.stamp([spec], observers.current_trace())
        answers = yield from self._store.templates.enqueue([spec], template.name, template.version, tenant).start()
        return prepared, answers

    def _usable(self, name: str, version: int | None, tenant: str) -> Steps[Template]:
        """The version, or the newest one unless it is a removal."""
        template = yield from self._store.templates.get(_checked(name), tenant, version).start()
        if template is None or (template.removed and version is None):
            raise _not_found(name)
        return template

    def _redacted(self, templates: _Templates) -> Steps[_Templates]:
        """The templates without the payloads of restricted kinds: only their jobs see those."""
        rules = yield from self._store.payload_rules.list(self._tenant).start()
        if not rules:
            return templates
        return [replace(t, payload=shown_payload(rules, t.tenant, t.kind, t.payload)) for t in templates]


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"no template {name} in this tenant",
        code="template_not_found",
        fix="Create it with app.templates.set(…) or holdfast templates set.",
    )


def _checked(name: str) -> str:
    return check_name(name, "template")
