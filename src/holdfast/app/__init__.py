"""``App``: the entry point. One database, the kinds of one program, and a namespace for each noun."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, Never

from holdfast import config
from holdfast.app.declarations import TemplateMaker
from holdfast.app.handlers import Declared
from holdfast.app.workers import Running
from holdfast.engine.hints import check_options, no_attribute
from holdfast.engine.hooks import AppHooks
from holdfast.engine.names import check_name
from holdfast.engine.operation import Program, awaited, operation
from holdfast.engine.redaction import Redactor
from holdfast.engine.units import Duration, seconds
from holdfast.features.agents.operations import Agents, Executors
from holdfast.features.approvals.operations import Approvals
from holdfast.features.archives.operations import Archives
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.operations import Audit
from holdfast.features.connectors.operations import Connectors
from holdfast.features.connectors.outbound import Outbound, OutgoingHeaders, SecretProvider
from holdfast.features.connectors.report import Sources
from holdfast.features.dead_letters.operations import DeadLetters, Operations
from holdfast.features.events.operations import Declarations, Events, Subscriptions
from holdfast.features.health.operations import HealthChecks
from holdfast.features.jobs.operations import Jobs
from holdfast.features.limits.operations import Limits, Pauses, Queues, Reservations
from holdfast.features.payloads.operations import PayloadRules
from holdfast.features.registry.operations import DeploymentPolicies, EventTypes, Kinds
from holdfast.features.retention.operations import RetentionPolicies, UsageReport
from holdfast.features.schedules.operations import Schedules
from holdfast.features.schedules.runs import Scheduler
from holdfast.features.schedules.templates import Templates
from holdfast.features.tenants.operations import Tenants
from holdfast.features.tokens.operations import Tokens
from holdfast.features.webhooks.operations import Webhooks
from holdfast.features.workers.operations import Workers
from holdfast.features.workflows.operations import Workflows
from holdfast.outgoing import EgressPolicy
from holdfast.stores.application_pool import url_of
from holdfast.stores.artifacts import Artifacts, ArtifactStore
from holdfast.stores.ids import new_id
from holdfast.stores.namespace import call
from holdfast.stores.port import POOL_SIZE
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault
from holdfast.telemetry import tracing

if TYPE_CHECKING:
    from holdfast.stores.application_pool import ApplicationPool


class App(Running):
    """One database, one tenant, and the kinds of one program::

        app = holdfast.App()  # the database that HOLDFAST_URL names

        @app.job(retry=Retry(max_attempts=5))
        async def send(to: str) -> None: ...

        send.enqueue("a@example.com")

    Creating an app opens no connection. Every operation of a namespace has a sync and an async form:
    ``app.limits.list()``, ``await app.limits.alist()``.

    Parameters:

    - ``url``: the database. By default ``HOLDFAST_URL``; raises ``InvalidSetting`` if there is neither.
    - ``tenant``: the tenant to work for. ``with app.tenant(name):`` changes it for a block.
    - ``name``: recorded as the ``source_system`` of jobs. By default the program's name.
    - ``schema``: the schema of the tables, in a database that has schemas.
    - ``enqueued_by``: recorded as the caller. By default the user of the operating system.
    - ``secret_names``: more names of environment variables whose values are redacted.
    - ``answer_within``: how long a database server may take to respond before the connection is dropped. By default
      30 seconds.
    - ``pool_size``: the number of connections to a database server for threads, and the same number per event loop.
    - ``pool``: the application's own pool or engine, whose connections are used instead of such connections: a pool of
      psycopg or asyncpg, or an engine of SQLAlchemy. Only that of asyncpg needs the URL too.
    - ``strict``: refuse to start a worker whose database role may read and write everything.
    - ``artifacts``: the artifact store: a directory, ``s3://…``, or an ``ArtifactStore``. By default
      ``HOLDFAST_ARTIFACTS``.
    - ``egress``: which addresses outgoing HTTP requests of jobs may reach.
    - ``secrets``: a function that returns a secret by its name and tenant. By default ``HOLDFAST_SECRET_…`` variables.
    - ``outgoing_headers``: a function that returns headers for each outgoing request. By default those of the trace.
    """

    jobs: Jobs
    """Read and change jobs: list, get, cancel, redrive, why, …"""
    events: Events
    """Read the events of jobs and of applications; manage consumers."""
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
    workers: Workers
    """Running workers: list, drain and stop them."""
    health: HealthChecks
    """Health of the system: verdict, statistics, activity."""
    hooks: AppHooks
    """Functions that run around enqueue, around each attempt, and after its end."""

    # An integration may replace it with a session that uses the framework's connection.
    _session_type: type[Session] = Session
    # The loop of a web application that runs in this process now. The test kit runs jobs there.
    _host_loop: asyncio.AbstractEventLoop | None = None

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = "default",
        name: str | None = None,
        schema: str = "holdfast",
        enqueued_by: str | None = None,
        secret_names: Sequence[str] = (),
        answer_within: Duration | None = None,
        pool_size: int = POOL_SIZE,
        pool: ApplicationPool | None = None,
        strict: bool = False,
        artifacts: str | PathLike[str] | ArtifactStore | None = None,
        egress: EgressPolicy | None = None,
        secrets: SecretProvider | None = None,
        outgoing_headers: OutgoingHeaders | None = None,
        **unknown: Never,
    ) -> None:
        check_options(unknown, _PARAMETERS)
        limit = None if answer_within is None else seconds(answer_within, "answer_within")
        self._schema, self._strict, database = (
            schema,
            strict,
            config.database_url(url or (None if pool is None else url_of(pool))),
        )
        self.hooks = AppHooks()
        self._session = session = self._session_type(
            open_store(database, schema=schema, answer_within=limit, pool_size=pool_size, pool=pool),
            tenant=check_name(tenant, "tenant"),
            name=check_name(name or config.program_name(), "name"),
            actor=check_name(enqueued_by or config.operating_user(), "enqueued_by"),
            vault=Vault.of(artifacts or config.artifact_location(database), config.key_text()),
            hooks=self.hooks,
        )
        super().__init__(session)
        self._declared = Declarations()
        self._kinds: dict[str, Declared] = {}
        self._notifier: str | None = None
        self._redactor = Redactor(check_name(name, "secret name") for name in secret_names)
        self._egress = egress or EgressPolicy(allow=config.egress_networks(), proxy=config.egress_proxy())
        self._outbound = Outbound(
            self._egress,
            secrets or config.tenant_secret,
            self._redactor,
            outgoing_headers or (lambda _: tracing.outgoing_headers()),
        )
        self._reports = Sources()
        self._all_kinds = ChainMap(self._kinds, self._built_in())
        self._scheduler = Scheduler(session, session.name, self._all_kinds.keys(), self._make, new_id)

        self.jobs = Jobs(session, self._payload)
        self.events, self.subscriptions = Events(session), Subscriptions(session)
        self.schedules = Schedules(session, self._make, new_id)
        self.templates = Templates(session, TemplateMaker(session, self._all_kinds, self._prepare))
        self.workflows = Workflows(session, self._child)
        self.approvals = Approvals(session)
        self.operations = Operations(session, new_id)
        self.dead_letters = DeadLetters(
            session, self.operations, lambda kind, payload, tenant: self._make(kind, payload, {"tenant": tenant})
        )
        self.limits, self.pauses = Limits(session), Pauses(session)
        self.reservations, self.queues = Reservations(session), Queues(session)
        self.agents, self.executors = Agents(session), Executors(session)
        self.kinds = Kinds(session, lambda: {name: each.registered for name, each in self._kinds.items()})
        self.event_types, self.policies = EventTypes(session), DeploymentPolicies(session)
        self.tenants, self.tokens = Tenants(session), Tokens(session, new_id)
        self.connectors, self.webhooks = Connectors(session), Webhooks(session)
        self.payload_rules = PayloadRules(session, session.name)
        self.retention = RetentionPolicies(session, session.vault.artifacts)
        self.archives = Archives(session, session.vault.artifacts)
        self.usage, self.audit, self.health = UsageReport(session), Audit(session), HealthChecks(session)
        self.workers = Workers(session)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute("App", self, name)

    @property
    def artifacts(self) -> Artifacts | None:
        """The artifact store, if one is configured: ``app.artifacts.get(ref, tenant=…)``."""
        return self._session.vault.artifacts

    def tenant(self, name: str) -> AbstractContextManager[None]:
        """Work for another tenant within the block: ``with app.tenant("acme"): …``.

        It applies to this task or thread. A handler always works for the tenant of its job.
        """
        return self._session.acting_for(name)

    @operation
    def close(self) -> Program[None]:
        """Close all connections."""
        yield from call(self._store.close, self._store.aclose)

    aclose = awaited(close)

    @contextmanager
    def _moved_to(self, store: Store, schema: str) -> Iterator[None]:
        """Use another database within the block, with all kinds that are declared. For tests."""
        own_schema, self._schema = self._schema, schema
        self._session.move_to(store)
        try:
            yield
        finally:
            self._session.move_to(self._session.home)
            self._schema = own_schema


_PARAMETERS = App.__init__.__annotations__.keys() - {"unknown", "return"}
