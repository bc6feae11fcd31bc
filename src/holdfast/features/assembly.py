"""Both stores put together from the engine's parts and the features', and ``open_store``: from a URL to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.engine.redaction import shown_url
from holdfast.engine.retry import whole
from holdfast.errors import InvalidSetting
from holdfast.features.agents.store import (
    AgentReads,
    AgentStore,
    ExecutorStore,
    PostgresAgents,
    PostgresExecutors,
    SqliteAgents,
    SqliteExecutors,
)
from holdfast.features.approvals.store import ApprovalReads, ApprovalStore, PostgresApprovals, SqliteApprovals
from holdfast.features.audit.sqlite import SqliteAudit
from holdfast.features.audit.store import AuditStore, PostgresAudit
from holdfast.features.connectors.store import ConnectorReads, ConnectorStore, PostgresConnectors, SqliteConnectors
from holdfast.features.dead_letters.sqlite import SqliteDeadLetters, SqliteOperations
from holdfast.features.dead_letters.store import DeadLetterReads, DeadLetterStore, PostgresDeadLetters
from holdfast.features.events.sqlite import SqliteSubscriptions
from holdfast.features.events.store import ConsumerStore, PostgresSubscriptions, SubscriptionStore
from holdfast.features.health.activity import HourReads, PostgresActivity, PulseReads, SqliteActivity
from holdfast.features.health.store import HealthStore
from holdfast.features.limits.sqlite import SqliteLimits, SqlitePauses, SqliteQueues, SqliteReservations
from holdfast.features.limits.store import (
    LimitReads,
    LimitStore,
    PauseReads,
    PauseStore,
    PostgresLimits,
    PostgresPauses,
)
from holdfast.features.payloads.store import PayloadReads, PayloadStore, PostgresPayloads, SqlitePayloads
from holdfast.features.retention.sqlite import SqliteRetention, SqliteUsage
from holdfast.features.retention.sqlite_purge import SqliteOrphans
from holdfast.features.retention.store import PostgresRetention, RetentionReads, RetentionStore
from holdfast.features.schedules.sqlite import SqliteSchedules, SqliteTemplates
from holdfast.features.schedules.store import PostgresSchedules, ScheduleReads, ScheduleStore
from holdfast.features.tenants.store import PostgresTenants, SqliteTenants, TenantReads, TenantStore
from holdfast.features.tokens.store import PostgresTokens, SqliteTokens, TokenReads, TokenStore
from holdfast.features.webhooks.store import PostgresWebhooks, SqliteWebhooks, WebhookReads, WebhookStore
from holdfast.features.workflows.store import PostgresWorkflows, SqliteWorkflows, WorkflowReads, WorkflowStore
from holdfast.stores.job_reads import JobReads, LedgerReads, OverviewReads
from holdfast.stores.port import MOST_CONNECTIONS, POOL_SIZE, ClockStore, JobStore, LeaseStore, LedgerStore, Store
from holdfast.stores.postgres.base import PostgresClock
from holdfast.stores.postgres.jobs import PostgresCircumstances, PostgresEnqueue, PostgresJobs
from holdfast.stores.postgres.leases import PostgresDuties, PostgresLeases, PostgresSettle, PostgresTurn
from holdfast.stores.postgres.ledger import PostgresLedger
from holdfast.stores.postgres.steps import PostgresSteps
from holdfast.stores.sqlite.base import SqliteClock
from holdfast.stores.sqlite.enqueue import SqliteEnqueue
from holdfast.stores.sqlite.jobs import SqliteCircumstances, SqliteJobs
from holdfast.stores.sqlite.leases import SqliteDuties, SqliteTurn
from holdfast.stores.sqlite.ledger import SqliteLedger
from holdfast.stores.sqlite.order import SqliteOrder
from holdfast.stores.sqlite.quarantine import SqliteQuarantine
from holdfast.stores.sqlite.settle import SqliteSettle
from holdfast.stores.sqlite.steps import SqliteSteps

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore
    from holdfast.stores.sqlite.store import SqliteStore


class Verbs(
    ClockStore,
    AgentStore,
    ExecutorStore,
    SubscriptionStore,
    ConsumerStore,
    LeaseStore,
    ApprovalStore,
    LedgerStore,
    ScheduleStore,
    WorkflowStore,
    LimitStore,
    JobStore,
    PayloadStore,
    TenantStore,
    AuditStore,
    DeadLetterStore,
    RetentionStore,
    PauseStore,
    TokenStore,
    ConnectorStore,
    WebhookStore,
    HealthStore,
    Protocol,
):
    """Every operation, as a flow. A tenant of ``*`` means every tenant, where the caller may."""


class PostgresVerbs(
    PostgresClock,
    PostgresEnqueue,
    PostgresLeases,
    PostgresTurn,
    PostgresSettle,
    PostgresDuties,
    PostgresJobs,
    PostgresLedger,
    PostgresSteps,
    PostgresApprovals,
    PostgresAgents,
    PostgresExecutors,
    PostgresSchedules,
    PostgresWorkflows,
    PostgresLimits,
    PostgresPauses,
    PostgresSubscriptions,
    PostgresCircumstances,
    PostgresActivity,
    PostgresPayloads,
    PostgresTenants,
    PostgresRetention,
    PostgresDeadLetters,
    PostgresAudit,
    PostgresTokens,
    PostgresConnectors,
    PostgresWebhooks,
    JobReads,
    ApprovalReads,
    LedgerReads,
    OverviewReads,
    PulseReads,
    AgentReads,
    ScheduleReads,
    WorkflowReads,
    LimitReads,
    PauseReads,
    PayloadReads,
    HourReads,
    TenantReads,
    RetentionReads,
    DeadLetterReads,
    TokenReads,
    ConnectorReads,
    WebhookReads,
):
    """Every operation of the PostgreSQL store. Reads come last: a store's own form of a read stands above them."""


class SqliteVerbs(
    SqliteClock,
    SqliteEnqueue,
    SqliteTurn,
    SqliteSettle,
    SqliteSteps,
    SqliteApprovals,
    SqliteDuties,
    SqliteQuarantine,
    SqliteWorkflows,
    SqliteJobs,
    SqliteOrder,
    SqliteLedger,
    SqliteLimits,
    SqliteReservations,
    SqlitePauses,
    SqliteQueues,
    SqliteWebhooks,
    SqliteSubscriptions,
    SqliteTenants,
    SqliteCircumstances,
    SqliteActivity,
    SqliteAgents,
    SqliteExecutors,
    SqliteTemplates,
    SqliteSchedules,
    SqliteRetention,
    SqliteOrphans,
    SqliteUsage,
    SqlitePayloads,
    SqliteDeadLetters,
    SqliteOperations,
    SqliteAudit,
    SqliteTokens,
    SqliteConnectors,
    JobReads,
    ApprovalReads,
    LedgerReads,
    OverviewReads,
    PulseReads,
    AgentReads,
    ScheduleReads,
    WorkflowReads,
    LimitReads,
    PauseReads,
    PayloadReads,
    HourReads,
    TenantReads,
    RetentionReads,
    DeadLetterReads,
    TokenReads,
    ConnectorReads,
    WebhookReads,
):
    """Every operation of the SQLite store. Reads come last: a store's own form of a read stands above them."""


_stand_ins: dict[str, Store] = {}


def stand_in(url: str, store: Store) -> None:
    """From now on this store is what is opened for ``url``, in this process: for children of a test."""
    _stand_ins[url] = store


def open_store(
    url: object, *, schema: str = "holdfast", answer_within: float | None = None, pool_size: int = POOL_SIZE
) -> Store:
    """``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:`` or ``postgresql://…``.

    ``answer_within`` is how many seconds a server may take to answer before its connection is given up, ``pool_size``
    how many connections to it there may be for threads, and as many for each event loop.
    """
    whole("pool_size", pool_size, 1, MOST_CONNECTIONS, "invalid_setting")
    url = url if isinstance(url, str) else ""
    if url in _stand_ins:
        return _stand_ins[url]
    scheme = url.split(":", 1)[0].lower()
    if scheme == "sqlite":
        return sqlite_store(url)
    if scheme in ("postgresql", "postgres"):
        return postgres_store(url, schema=schema, pool_size=pool_size, answer_within=answer_within)
    raise InvalidSetting(
        f"{shown_url(url)} is not a database URL",
        code="invalid_url",
        fix="Use sqlite:///jobs.db or postgresql://user@host/database.",
    )


def sqlite_store(url: str) -> SqliteStore:
    from holdfast.stores.sqlite.store import SqliteStore

    return SqliteStore(url, SqliteVerbs())


def postgres_store(
    url: str, *, schema: str = "holdfast", pool_size: int = POOL_SIZE, answer_within: float | None = None
) -> PostgresStore:
    from holdfast.stores.postgres.store import ANSWER_WITHIN, PostgresStore

    within = answer_within or ANSWER_WITHIN
    return PostgresStore(url, PostgresVerbs(schema), schema=schema, pool_size=pool_size, answer_within=within)
