"""The app: where kinds are declared, jobs are enqueued, and a worker finds its handlers. Its parts are by subject."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike

from holdfast import config
from holdfast.app.actions import Acting
from holdfast.app.handlers import Declared
from holdfast.app.workers import Running
from holdfast.engine.names import check_name
from holdfast.engine.redaction import Redactor
from holdfast.engine.units import Duration, seconds
from holdfast.features.agents.operations import Agents, Executors
from holdfast.features.assembly import Store, open_store
from holdfast.features.audit.operations import Audit
from holdfast.features.connectors.outbound import Outbound, SecretProvider
from holdfast.features.connectors.report import Sources
from holdfast.features.dead_letters.operations import Operations
from holdfast.features.events.operations import Consumers, Declarations, Subscriptions
from holdfast.features.limits.operations import Limits, Queues, Reservations
from holdfast.features.payloads.operations import PayloadRules
from holdfast.features.retention.operations import RetentionPolicies, UsageReport
from holdfast.features.schedules.firing import Scheduler
from holdfast.features.tenants.operations import Tenants
from holdfast.features.webhooks.operations import Endpoints
from holdfast.outgoing import EgressPolicy
from holdfast.stores.artifacts import Artifacts, ArtifactStore
from holdfast.stores.ids import new_id
from holdfast.stores.port import POOL_SIZE
from holdfast.stores.session import Session
from holdfast.stores.vault import Vault
from holdfast.telemetry.tracing import outgoing_headers


class App(Acting, Running):
    """One database, one tenant, the kinds of one program. Without a URL, HOLDFAST_URL names the database."""

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
        strict: bool = False,
        artifacts: str | PathLike[str] | ArtifactStore | None = None,
        egress: EgressPolicy | None = None,
        secrets: SecretProvider | None = None,
    ) -> None:
        limit = None if answer_within is None else seconds(answer_within, "answer_within")
        self.schema, self.strict, named = schema, strict, config.database_url(url)
        self.client = Session(
            open_store(named, schema=schema, answer_within=limit, pool_size=pool_size),
            tenant=check_name(tenant, "tenant"),
            name=check_name(name or config.program_name(), "name"),
            actor=check_name(enqueued_by or config.operating_user(), "enqueued_by"),
            vault=Vault.of(artifacts or config.artifact_place(named), config.key_text()),
        )
        self.payload_rules = PayloadRules(self.client, self.client.name)
        self.agents = Agents(self.client)
        self.limits = Limits(self.client)
        self.audit = Audit(self.client)
        self.queues = Queues(self.client)
        self.reservations = Reservations(self.client)
        self.subscriptions, self.consumers = Subscriptions(self.client), Consumers(self.client)
        self.executors, self.tenants = Executors(self.client), Tenants(self.client)
        self.retention = RetentionPolicies(self.client, self.client.vault.artifacts)
        self.usage = UsageReport(self.client)
        self.operations = Operations(self.client, new_id)
        self.endpoints = Endpoints(self.client)
        self.declared = Declarations()
        self.kinds: dict[str, Declared] = {}
        self.notifier: str | None = None
        self.redactor = Redactor(check_name(name, "secret name") for name in secret_names)
        self.egress = egress or EgressPolicy(allow=config.egress_networks(), proxy=config.egress_proxy())
        self.reach, self.reports = (
            Outbound(self.egress, secrets or config.tenant_secret, self.redactor, lambda _: outgoing_headers()),
            Sources(),
        )
        self.all_kinds = ChainMap(self.kinds, self._built_in())
        self.scheduler = Scheduler(self.client, self.client.name, self.all_kinds.keys(), self._make, new_id)

    @property
    def artifacts(self) -> Artifacts | None:
        """Where what is large lies, if a place is named: ``app.artifacts.get(ref, tenant=…)``."""
        return self.client.vault.artifacts

    @contextmanager
    def moved_to(self, store: Store, schema: str) -> Iterator[None]:
        """On another database for the length of the block, with every kind that was declared. For tests."""
        own, self.schema = self.schema, schema
        self.client.move_to(store)
        try:
            yield
        finally:
            self.client.move_to(self.client.home)
            self.schema = own

    def tenant(self, name: str) -> AbstractContextManager[None]:
        """Work for another tenant within the block: ``with app.tenant("acme"): …``. In a handler it is the job's."""
        return self.client.acting_for(name)

    def close(self) -> None:
        self.store.close()

    async def aclose(self) -> None:
        await self.store.aclose()
