"""``Store``, a database with one attribute per namespace of operations, and ``open_store``, which opens one by URL.

``features/sqlite.py`` and ``features/postgres.py`` assemble the implementations.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from holdfast.engine.redaction import shown_url
from holdfast.engine.retry import whole
from holdfast.errors import InvalidSetting
from holdfast.stores.application_pool import check_sqlite
from holdfast.stores.port import MOST_CONNECTIONS, POOL_SIZE, Database

if TYPE_CHECKING:
    from holdfast.features.agents.store import AgentStore, ExecutorStore
    from holdfast.features.approvals.store import ApprovalStore
    from holdfast.features.archives.store import ArchiveStore
    from holdfast.features.attempts.store import AttemptStore
    from holdfast.features.audit.store import AuditStore
    from holdfast.features.connectors.store import ConnectorStore
    from holdfast.features.dead_letters.store import DeadLetterStore, OperationStore
    from holdfast.features.events.store import ConsumerStore, SubscriptionStore
    from holdfast.features.health.store import HealthStore
    from holdfast.features.limits.store import LimitStore, PauseStore, QueueStore, ReservationStore
    from holdfast.features.payloads.store import PayloadRuleStore
    from holdfast.features.registry.store import EventTypeStore, KindStore, PolicyStore
    from holdfast.features.retention.store import RetentionStore, UsageStore
    from holdfast.features.schedules.store import ScheduleStore, TemplateStore
    from holdfast.features.tenants.store import TenantStore
    from holdfast.features.tokens.store import TokenStore
    from holdfast.features.webhooks.store import WebhookStore
    from holdfast.features.workflows.store import WorkflowStore
    from holdfast.stores.application_pool import ApplicationPool
    from holdfast.stores.port import ClockStore, JobStore, LeaseStore, LedgerStore, StepStore


class Store(Database, Protocol):
    """Operations return flows, which the store runs. The tenant ``*`` means every tenant, if the caller has that
    right."""

    @property
    def jobs(self) -> JobStore: ...
    @property
    def clock(self) -> ClockStore: ...
    @property
    def leases(self) -> LeaseStore: ...
    @property
    def steps(self) -> StepStore: ...
    @property
    def attempts(self) -> AttemptStore: ...
    @property
    def ledger(self) -> LedgerStore: ...
    @property
    def subscriptions(self) -> SubscriptionStore: ...
    @property
    def consumers(self) -> ConsumerStore: ...
    @property
    def approvals(self) -> ApprovalStore: ...
    @property
    def agents(self) -> AgentStore: ...
    @property
    def executors(self) -> ExecutorStore: ...
    @property
    def kinds(self) -> KindStore: ...
    @property
    def event_types(self) -> EventTypeStore: ...
    @property
    def policies(self) -> PolicyStore: ...
    @property
    def limits(self) -> LimitStore: ...
    @property
    def pauses(self) -> PauseStore: ...
    @property
    def reservations(self) -> ReservationStore: ...
    @property
    def queues(self) -> QueueStore: ...
    @property
    def tenants(self) -> TenantStore: ...
    @property
    def payload_rules(self) -> PayloadRuleStore: ...
    @property
    def templates(self) -> TemplateStore: ...
    @property
    def schedules(self) -> ScheduleStore: ...
    @property
    def workflows(self) -> WorkflowStore: ...
    @property
    def dead_letters(self) -> DeadLetterStore: ...
    @property
    def operations(self) -> OperationStore: ...
    @property
    def archives(self) -> ArchiveStore: ...
    @property
    def retention(self) -> RetentionStore: ...
    @property
    def usage(self) -> UsageStore: ...
    @property
    def audit(self) -> AuditStore: ...
    @property
    def tokens(self) -> TokenStore: ...
    @property
    def connectors(self) -> ConnectorStore: ...
    @property
    def webhooks(self) -> WebhookStore: ...
    @property
    def health(self) -> HealthStore: ...


_substitutes: dict[str, Store] = {}


def substitute_store(url: str, store: Store) -> None:
    """Make ``open_store`` return this store for ``url`` in this process. For child processes of the test kit."""
    _substitutes[url] = store


def require_postgres() -> None:
    """Raise ``InvalidSetting`` if the packages for PostgreSQL are not installed."""
    try:
        import holdfast.features.postgres  # noqa: F401
    except ImportError as missing:
        if (missing.name or "").startswith("holdfast"):
            raise
        raise InvalidSetting(
            "PostgreSQL support is not installed",
            code="missing_extra",
            fix="Install it with: pip install 'holdfast[postgres-binary]'",
        ) from missing


def open_store(
    url: object,
    *,
    schema: str = "holdfast",
    answer_within: float | None = None,
    pool_size: int = POOL_SIZE,
    pool: ApplicationPool | None = None,
) -> Store:
    """Open ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:`` or ``postgresql://…``.

    ``answer_within`` is the number of seconds after which a connection whose server has not answered is closed.
    ``pool_size`` is the maximum number of connections for threads, and again for each event loop. ``pool`` is the
    application's own pool to this database.
    """
    whole("pool_size", pool_size, 1, MOST_CONNECTIONS, "invalid_setting")
    if not isinstance(url, str):
        raise _not_a_url(url)
    if url in _substitutes:
        return _substitutes[url]
    scheme = url.split(":", 1)[0].lower()
    if scheme == "sqlite":
        from holdfast.features.sqlite import SqliteStore
        from holdfast.stores.sqlite.connections import database_path

        if pool is not None:
            check_sqlite(pool, database_path(url))
        return SqliteStore(url)
    if scheme in ("postgresql", "postgres"):
        require_postgres()
        from holdfast.features.postgres import ANSWER_WITHIN, PostgresStore

        within = answer_within or ANSWER_WITHIN
        return PostgresStore(url, schema=schema, pool_size=pool_size, answer_within=within, pool=pool)
    raise _not_a_url(url)


_DRIVER = re.compile(r"(postgresql|postgres|sqlite)\+(\w+):")
_FILE = re.compile(r"[\w./~-]+\.(db|sqlite3?)")  # nothing that could be a password


def _not_a_url(url: object) -> InvalidSetting:
    """The error for anything but a URL of a database, with what was probably meant."""
    what, fix = shown_url(url), "Use sqlite:///jobs.db or postgresql://user@host/database."
    if not isinstance(url, str):
        what = f"{type(url).__name__} (expected text)"
        if type(url).__module__.startswith("sqlalchemy"):
            fix = "Use holdfast.integrations.sqlalchemy.url_of(engine)."
    elif driver := _DRIVER.match(url):
        fix = f"Leave out +{driver[2]}, or use holdfast.integrations.sqlalchemy.url_of(engine)."
    elif file := _FILE.fullmatch(url):
        fix = f"Use sqlite:///{file[0]}."
    elif url.isidentifier():
        fix += " If it is the name of the app: App(url, name=…)."
    return InvalidSetting(f"{what} is not a database URL", code="invalid_url", fix=fix)
