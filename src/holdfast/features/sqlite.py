"""The SQLite store: the engine's operations and those of every feature."""

from __future__ import annotations

from holdfast.features import FEATURES
from holdfast.features.agents.store import SqliteAgents, SqliteExecutors
from holdfast.features.approvals.store import SqliteApprovals
from holdfast.features.archives.store import SqliteArchives
from holdfast.features.attempts.store import SqliteAttempts
from holdfast.features.audit.sqlite import SqliteAudit
from holdfast.features.connectors.store import SqliteConnectors
from holdfast.features.dead_letters.sqlite import SqliteDeadLetters, SqliteOperations
from holdfast.features.events.sqlite import SqliteConsumers, SqliteSubscriptions
from holdfast.features.health.snapshot import SqliteHealth
from holdfast.features.limits.sqlite import SqliteLimits, SqlitePauses, SqliteQueues
from holdfast.features.limits.store import SqliteReservations
from holdfast.features.payloads.store import SqlitePayloadRules
from holdfast.features.registry.store import SqliteEventTypes, SqliteKinds, SqlitePolicies
from holdfast.features.restores.store import SqliteRestores
from holdfast.features.retention.sqlite import SqliteRetention, SqliteUsage
from holdfast.features.schedules.sqlite import SqliteSchedules, SqliteTemplates
from holdfast.features.tenants.store import SqliteTenants
from holdfast.features.tokens.store import SqliteTokens
from holdfast.features.versions.store import SqliteVersions
from holdfast.features.webhooks.store import SqliteWebhooks
from holdfast.features.workflows.sqlite import SqliteWorkflows
from holdfast.stores.sqlite.base import SqliteClock
from holdfast.stores.sqlite.jobs import SqliteJobs
from holdfast.stores.sqlite.leases import SqliteLeases
from holdfast.stores.sqlite.ledger import SqliteLedger
from holdfast.stores.sqlite.steps import SqliteSteps
from holdfast.stores.sqlite.store import SqliteDatabase


class SqliteStore(SqliteDatabase):
    def __init__(self, url: str) -> None:
        super().__init__(url, features=FEATURES)
        self.clock = SqliteClock()
        self.jobs = SqliteJobs()
        self.leases = SqliteLeases()
        self.steps = SqliteSteps()
        self.attempts = SqliteAttempts()
        self.ledger = SqliteLedger()
        self.templates = SqliteTemplates()
        self.schedules = SqliteSchedules()
        self.payload_rules = SqlitePayloadRules()
        self.subscriptions = SqliteSubscriptions(self.jobs, self.ledger, self.templates, self.payload_rules)
        self.consumers = SqliteConsumers()
        self.pauses = SqlitePauses()
        self.limits = SqliteLimits()
        self.reservations = SqliteReservations()
        self.queues = SqliteQueues()
        self.tenants = SqliteTenants()
        self.agents = SqliteAgents()
        self.executors = SqliteExecutors()
        self.kinds = SqliteKinds()
        self.event_types = SqliteEventTypes()
        self.policies = SqlitePolicies()
        self.approvals = SqliteApprovals()
        self.workflows = SqliteWorkflows(self.jobs)
        self.dead_letters = SqliteDeadLetters()
        self.operations = SqliteOperations()
        self.webhooks = SqliteWebhooks(self.subscriptions)
        self.connectors = SqliteConnectors()
        self.retention = SqliteRetention()
        self.archives = SqliteArchives()
        self.usage = SqliteUsage()
        self.audit = SqliteAudit()
        self.tokens = SqliteTokens()
        self.restores = SqliteRestores()
        self.versions = SqliteVersions()
        self.health = SqliteHealth(self.pauses, self.consumers, self.subscriptions, self.versions)
