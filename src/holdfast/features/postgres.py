"""The PostgreSQL store: the engine's operations and those of every feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.features import FEATURES
from holdfast.features.agents.store import PostgresAgents, PostgresExecutors
from holdfast.features.approvals.store import PostgresApprovals
from holdfast.features.archives.store import PostgresArchives
from holdfast.features.attempts.store import PostgresAttempts
from holdfast.features.audit.store import PostgresAudit
from holdfast.features.connectors.store import PostgresConnectors
from holdfast.features.dead_letters.store import PostgresDeadLetters, PostgresOperations
from holdfast.features.events.store import PostgresConsumers, PostgresSubscriptions
from holdfast.features.health.snapshot import PostgresHealth
from holdfast.features.limits.store import PostgresLimits, PostgresPauses, PostgresQueues, PostgresReservations
from holdfast.features.payloads.store import PostgresPayloadRules
from holdfast.features.registry.store import PostgresEventTypes, PostgresKinds, PostgresPolicies
from holdfast.features.restores.store import PostgresRestores
from holdfast.features.retention.store import PostgresRetention, PostgresUsage
from holdfast.features.schedules.store import PostgresSchedules, PostgresTemplates
from holdfast.features.tenants.store import PostgresTenants
from holdfast.features.tokens.store import PostgresTokens
from holdfast.features.versions.store import PostgresVersions
from holdfast.features.webhooks.store import PostgresWebhooks
from holdfast.features.workflows.store import PostgresWorkflows
from holdfast.stores.postgres.base import PostgresClock
from holdfast.stores.postgres.jobs import PostgresJobs
from holdfast.stores.postgres.leases import PostgresLeases
from holdfast.stores.postgres.ledger import PostgresLedger
from holdfast.stores.postgres.steps import PostgresSteps
from holdfast.stores.postgres.store import ANSWER_WITHIN, PostgresDatabase

if TYPE_CHECKING:
    from holdfast.stores.application_pool import ApplicationPool

__all__ = ["ANSWER_WITHIN", "PostgresStore"]


class PostgresStore(PostgresDatabase):
    def __init__(
        self,
        url: str,
        *,
        schema: str = "holdfast",
        pool_size: int = 8,
        answer_within: float = ANSWER_WITHIN,
        pool: ApplicationPool | None = None,
    ) -> None:
        super().__init__(
            url, schema=schema, pool_size=pool_size, answer_within=answer_within, features=FEATURES, pool=pool
        )
        self.clock = PostgresClock(schema)
        self.jobs = PostgresJobs(schema)
        self.leases = PostgresLeases(schema)
        self.steps = PostgresSteps(schema)
        self.attempts = PostgresAttempts(schema)
        self.ledger = PostgresLedger(schema)
        self.templates = PostgresTemplates(schema)
        self.schedules = PostgresSchedules(schema)
        self.payload_rules = PostgresPayloadRules(schema)
        self.subscriptions = PostgresSubscriptions(schema, self.jobs, self.ledger, self.templates, self.payload_rules)
        self.consumers = PostgresConsumers(schema)
        self.pauses = PostgresPauses(schema)
        self.limits = PostgresLimits(schema)
        self.reservations = PostgresReservations(schema)
        self.queues = PostgresQueues(schema)
        self.tenants = PostgresTenants(schema)
        self.agents = PostgresAgents(schema)
        self.executors = PostgresExecutors(schema)
        self.kinds = PostgresKinds(schema)
        self.event_types = PostgresEventTypes(schema)
        self.policies = PostgresPolicies(schema)
        self.approvals = PostgresApprovals(schema)
        self.workflows = PostgresWorkflows(schema)
        self.dead_letters = PostgresDeadLetters(schema)
        self.operations = PostgresOperations(schema)
        self.webhooks = PostgresWebhooks(schema)
        self.connectors = PostgresConnectors(schema)
        self.retention = PostgresRetention(schema)
        self.archives = PostgresArchives(schema)
        self.usage = PostgresUsage(schema)
        self.audit = PostgresAudit(schema)
        self.tokens = PostgresTokens(schema)
        self.restores = PostgresRestores(schema)
        self.versions = PostgresVersions(schema)
        self.health = PostgresHealth(schema, self.pauses, self.consumers, self.subscriptions, self.versions)
