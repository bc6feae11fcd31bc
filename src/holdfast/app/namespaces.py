"""``Namespaces``: what ``App`` offers besides declaring and running jobs, one attribute for each noun."""

from __future__ import annotations

from holdfast.app.enqueue import JobMaker
from holdfast.features.agents.operations import Agents, Executors
from holdfast.features.approvals.operations import Approvals
from holdfast.features.archives.operations import Archives
from holdfast.features.audit.operations import Audit
from holdfast.features.connectors.operations import Connectors
from holdfast.features.dead_letters.operations import DeadLetters, Operations
from holdfast.features.events.operations import Consumers, Events, Subscriptions
from holdfast.features.health.operations import HealthChecks
from holdfast.features.jobs.operations import Jobs
from holdfast.features.limits.operations import Limits, Pauses, Queues, Reservations
from holdfast.features.payloads.operations import PayloadRules
from holdfast.features.registry.operations import DeploymentPolicies, EventTypes, Kinds
from holdfast.features.restores.operations import Restores
from holdfast.features.retention.operations import RetentionPolicies, UsageReport
from holdfast.features.schedules.operations import Schedules
from holdfast.features.schedules.templates import Templates
from holdfast.features.tenants.operations import Tenants
from holdfast.features.tokens.operations import Tokens
from holdfast.features.versions.operations import Versions
from holdfast.features.webhooks.operations import Webhooks
from holdfast.features.workers.operations import Workers
from holdfast.features.workflows.operations import Workflows
from holdfast.stores.namespace import StoreNamespace
from holdfast.stores.session import Session


class Namespaces(StoreNamespace):
    jobs: Jobs
    """Read and change jobs: list, get, cancel, redrive, why, …"""
    events: Events
    """Read the events of jobs and of applications, as a named consumer."""
    consumers: Consumers
    """Consumers of events: their positions."""
    subscriptions: Subscriptions
    """Subscriptions: events that create jobs."""
    schedules: Schedules
    """Schedules: times at which jobs are created."""
    templates: Templates
    """Templates: named, versioned job definitions."""
    workflows: Workflows
    """Workflows that have started: read, extend, cancel and resume them."""
    approvals: Approvals
    """Approvals: decisions that jobs wait for. List, approve and deny them."""
    dead_letters: DeadLetters
    """Jobs that failed permanently, grouped by cause."""
    operations: Operations
    """Bulk operations: cancel, redrive or discard all jobs that match."""
    limits: Limits
    """Limits on concurrency and rate."""
    pauses: Pauses
    """Pauses of queues, kinds, agents, tenants, or of everything."""
    reservations: Reservations
    """Resources and queues on which no job starts for a while."""
    queues: Queues
    """Settings of queues: aging."""
    agents: Agents
    """Named owners of jobs."""
    executors: Executors
    """Labels that may execute jobs."""
    kinds: Kinds
    """The registry of kinds."""
    event_types: EventTypes
    """The registry of event types, with their schemas."""
    policies: DeploymentPolicies
    """Rules of the whole deployment, such as how unregistered names are treated."""
    tenants: Tenants
    """Limits and fair shares of tenants."""
    tokens: Tokens
    """API tokens of the HTTP service."""
    connectors: Connectors
    """Hosts and secrets that the built-in kinds may use."""
    webhooks: Webhooks
    """Webhooks: HTTP endpoints that are notified of events."""
    payload_rules: PayloadRules
    """Rules for payloads and results."""
    retention: RetentionPolicies
    """Retention: how long jobs are kept."""
    archives: Archives
    """Finished jobs in the artifact store, before retention removes them."""
    usage: UsageReport
    """Attempts, run time and cost per tenant, kind and day."""
    audit: Audit
    """Seal, verify and export the ledger."""
    restores: Restores
    """What is different after a restore, and adopting the copy."""
    workers: Workers
    """Running workers: list, drain and stop them."""
    versions: Versions
    """Versions of the application: which jobs need which, held jobs, and patches."""
    health: HealthChecks
    """Health of the system: verdict, statistics, activity."""

    def __init__(self, session: Session, make: JobMaker) -> None:
        super().__init__(session)
        self.jobs = Jobs(session, make.payload)
        self.events, self.consumers, self.subscriptions = Events(session), Consumers(session), Subscriptions(session)
        self.schedules = Schedules(session, make.spec)
        self.templates = Templates(session, make)
        self.workflows = Workflows(session, make.child)
        self.approvals = Approvals(session)
        self.operations = Operations(session)
        self.dead_letters = DeadLetters(
            session, lambda kind, payload, tenant: make.spec(kind, payload, {"tenant": tenant})
        )
        self.limits, self.pauses = Limits(session), Pauses(session)
        self.reservations, self.queues = Reservations(session), Queues(session)
        self.agents, self.executors = Agents(session), Executors(session)
        self.kinds = Kinds(session, lambda: {name: each.registered for name, each in make.declared.items()})
        self.event_types, self.policies = EventTypes(session), DeploymentPolicies(session)
        self.tenants, self.tokens = Tenants(session), Tokens(session)
        self.connectors, self.webhooks = Connectors(session), Webhooks(session)
        self.payload_rules = PayloadRules(session)
        self.retention = RetentionPolicies(session, session.vault.artifacts)
        self.archives = Archives(session, session.vault.artifacts)
        self.usage, self.audit, self.health = UsageReport(session), Audit(session), HealthChecks(session)
        self.workers, self.versions, self.restores = Workers(session), Versions(session), Restores(session)
