"""``DjangoApp``: an ``App`` on Django's database, which enqueues on Django's connection.

A job that is enqueued in a view exists if the view's transaction commits. Workers, the dashboard and async calls use
separate connections to the same database.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar, cast

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from holdfast.app import App
from holdfast.app.declarations import ScheduleDecorator, Timed
from holdfast.app.internals import scheduler_of
from holdfast.context import on_a_loop
from holdfast.engine.hints import check_options
from holdfast.engine.hooks import RunInfo
from holdfast.engine.job import EVERY_TENANT, Enqueued, JobSpec
from holdfast.engine.states import State
from holdfast.errors import InvalidArguments, InvalidInput, SchemaMismatch
from holdfast.features.assembly import open_store
from holdfast.integrations.django.orm_connection import (
    SQLITE,
    HostedStore,
    can_host,
    close_old_connections,
    is_in_memory,
    not_migrated,
    run_on_django,
    url_of,
)
from holdfast.steps.signature import Signature
from holdfast.stores.flow import Flow
from holdfast.stores.requests import JobFilter
from holdfast.stores.session import Session

T = TypeVar("T")

PAGE: Final = 1_000
SETTINGS: Final = frozenset(
    {"DATABASE", "SCHEMA", "TENANT", "NAME", "POOL_SIZE", "STRICT", "ARTIFACTS", "SECRET_NAMES"}
)
"""Keys of ``settings.HOLDFAST``: the alias of a database, and options of ``App``."""


def configured() -> dict[str, Any]:
    """Return ``settings.HOLDFAST``. Raises ``ImproperlyConfigured`` for unknown keys."""
    options = dict(getattr(settings, "HOLDFAST", {}))
    if unknown := options.keys() - SETTINGS:
        raise ImproperlyConfigured(f"HOLDFAST has unknown keys: {', '.join(sorted(unknown))}.")
    return options


class DjangoSession(Session):
    """Runs sync calls on Django's connection of this thread, and async ones on the store's connections.

    On SQLite, calls outside of a transaction have the store's connections, with the settings that it relies on.
    """

    alias = DEFAULT_DB_ALIAS
    _name: object = None

    def follow(self) -> Any:
        """Switch to the database that Django uses now, and return Django's connection of this thread.

        Test runners change the name of the database after the app was created.
        """
        wrapper = connections[self.alias]
        name = wrapper.settings_dict["NAME"]
        if name == self._name:
            return wrapper
        previous, self._name = self._name, name
        if previous is not None:
            old_store = self.store
            self.home = open_store(url_of(self.alias), schema=getattr(old_store, "schema_name", "holdfast"))
            self.move_to(self.home)
            old_store.close()
        return wrapper

    @property
    def _is_hosted(self) -> bool:
        return isinstance(self.store, HostedStore)

    @property
    def _joins(self) -> bool:
        """Whether Django's connection may have data that no other connection can see."""
        return is_in_memory(self.alias) or (connections[self.alias].in_atomic_block and can_host(self.alias))

    @property
    def _lends(self) -> bool:
        """Whether Django's connection is used although no transaction is open: not by threads of ours, which would
        leave it open, and not on an event loop, where Django refuses queries."""
        if connections[self.alias].vendor == SQLITE or not can_host(self.alias):
            return False
        return not threading.current_thread().name.startswith("holdfast-") and not on_a_loop()

    def make_ready(self) -> None:
        self.follow()
        if not self._is_hosted and not is_in_memory(self.alias):
            super().make_ready()

    def run(self, flow: Flow[T]) -> T:
        wrapper = self.follow()
        return run_on_django(wrapper, flow) if self._joins or self._lends else super().run(flow)

    def read(self, flow: Flow[T]) -> T:
        """Run a flow on Django's connection, whether a transaction is open there or not."""
        wrapper = self.follow()
        return run_on_django(wrapper, flow) if can_host(self.alias) else super().run(flow)

    def _insert(self, specs: Sequence[JobSpec], tenant: str, connection: object | None) -> list[Enqueued]:
        if connection is not None:
            return super()._insert(specs, tenant, connection)
        wrapper = self.follow()
        if wrapper.vendor == SQLITE or (not wrapper.in_atomic_block and can_host(self.alias)):
            return run_on_django(wrapper, self.store.jobs.enqueue(specs, tenant))
        try:
            return self.store.run_on_connection(wrapper, self.store.on_connection.enqueue(specs, tenant))
        except SchemaMismatch as error:
            raise not_migrated() from error

    def cancel_unfinished(self, reason: str, keep: Callable[[str], bool] = lambda _: False) -> int:
        """Cancel the unfinished jobs of every tenant, except those whose ids ``keep`` accepts. Returns their number."""
        cancelled = 0
        for state in (state for state in State if state.active):
            page = JobFilter(tenant=EVERY_TENANT, state=state, limit=PAGE, payloads=False)
            while jobs := self.read(self.store.jobs.list(page)):
                chosen = [job for job in jobs if not keep(job.id)]
                for tenant in dict.fromkeys(job.tenant for job in chosen):
                    ids = [job.id for job in chosen if job.tenant == tenant]
                    self.read(self.store.jobs.operate("cancel", ids, reason, self.actor, tenant))
                cancelled += len(chosen)
                page = replace(page, before=jobs[-1].id)
        return cancelled

    async def _ainsert(self, specs: Sequence[JobSpec], tenant: str, connection: object | None) -> list[Enqueued]:
        if connection is not None:
            return await super()._ainsert(specs, tenant, connection)
        result: list[Enqueued] = await sync_to_async(self._insert, thread_sensitive=True)(specs, tenant, None)
        return result


class DjangoSignature(Signature):
    """Refuses model instances with a clear error. A job outlives the instance, so it takes the primary key."""

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit: int) -> str:
        try:
            return super().pack(args, kwargs, limit=limit)
        except InvalidInput as refused:
            refuse_models(self._kind, {**dict(zip(self.names, args, strict=False)), **kwargs}, refused)
            raise


def refuse_models(kind: str, arguments: Mapping[str, Any], cause: BaseException) -> None:
    """Raise ``InvalidArguments`` with the code ``model_instance`` if an argument is, or contains, a model instance."""
    from django.db.models import Model, QuerySet

    def find(value: Any, path: str, depth: int = 0) -> None:
        if isinstance(value, Model):
            raise InvalidArguments(
                f"{kind}: {path} is an instance of {value._meta.label}, and a job takes no model instances",
                code="model_instance",
                fix="Pass its primary key (.pk) and load the object in the handler.",
            ) from cause
        if isinstance(value, QuerySet):
            raise InvalidArguments(
                f"{kind}: {path} is a query set of {value.model._meta.label}, and a job takes no model instances",
                code="model_instance",
                fix="Pass a list of primary keys and query in the handler.",
            ) from cause
        if depth < 5 and isinstance(value, Mapping):
            for name, item in value.items():
                find(item, f"{path}[{name!r}]", depth + 1)
        elif depth < 5 and isinstance(value, list | tuple):
            for number, item in enumerate(value):
                find(item, f"{path}[{number}]", depth + 1)

    for name, value in arguments.items():
        find(value, name)


def _fresh_connections(run: RunInfo) -> Iterator[None]:
    """Around each attempt, in the handler's thread: close connections that are broken or older than CONN_MAX_AGE."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


class TaskSchedule(ScheduleDecorator):
    """The result of ``app.schedule(…)``. It also takes a task of Django, whose arguments are in ``payload``."""

    def __init__(self, app: DjangoApp, timing: str | float | timedelta, definition: Timed) -> None:
        self._app = app
        super().__init__(scheduler_of(app), timing, definition)

    def __call__(self, target: T) -> T:
        from holdfast.integrations.django.compat import Task

        if not isinstance(target, Task) or self._declared:
            return super().__call__(target)
        self._app.schedule(self._timing, **{**self._definition, "kind": target})
        return target

    def _declare_pending(self, function: str, kind: str) -> None:
        from holdfast.integrations.django.backend import registered

        task = registered(kind)
        if task is None:
            super()._declare_pending(function, kind)
        else:
            self._scheduler.without_job.remove(function)
            self(task)


class DjangoApp(App):
    """The app of a Django project. There is one per process, which ``get_app()`` returns."""

    _session: DjangoSession
    _session_type = DjangoSession
    _signature_type = DjangoSignature

    def __init__(self, alias: str = DEFAULT_DB_ALIAS, **options: Any) -> None:
        super().__init__(url_of(alias), **options)
        self.alias = alias
        self._session.alias = alias
        self._session.follow()
        self.hooks.around_run(_fresh_connections)
        self.hooks.around_run(self._fresh_async_connections)

    async def _fresh_async_connections(self, run: RunInfo) -> AsyncIterator[None]:
        """The same for async handlers, whose queries run in the thread that ``sync_to_async`` uses."""
        declared = self._kinds.get(run.kind)
        if declared is None or not iscoroutinefunction(declared.kind.function):
            yield
            return
        close = sync_to_async(close_old_connections, thread_sensitive=True)
        await close()
        try:
            yield
        finally:
            await close()

    def schedule(self, timing: str | float | timedelta = "", **definition: Any) -> ScheduleDecorator:
        """Like ``App.schedule``, and for tasks of Django too: ``app.schedule("@daily", kind=send_receipt)``."""
        from holdfast.integrations.django.backend import scheduled
        from holdfast.integrations.django.compat import Task

        if isinstance(definition.get("kind"), Task):
            definition = scheduled(self, definition)
        check_options(definition, ("timing", *Timed.__annotations__))
        return TaskSchedule(self, timing, cast(Timed, definition))

    @property
    def session(self) -> DjangoSession:
        return self._session


_lock = threading.Lock()
_app: DjangoApp | None = None


def get_app() -> DjangoApp:
    """Return the app on the database that ``settings.HOLDFAST["DATABASE"]`` names, or on the default one."""
    global _app
    if _app is not None:
        return _app
    if not (apps.apps_ready or apps.loading) and os.environ.get("DJANGO_SETTINGS_MODULE"):
        # A process that Holdfast started: one of several workers, or the child of a job with process=True.
        import django

        django.setup()
    with _lock:
        if _app is None:
            options = configured()
            alias = options.pop("DATABASE", DEFAULT_DB_ALIAS)
            # Not the program's name: a web server, manage.py and a worker must share the declared schedules.
            options.setdefault("NAME", (settings.SETTINGS_MODULE or "django").partition(".")[0])
            _app = DjangoApp(alias, **{name.lower(): value for name, value in options.items()})
        return _app
