"""All verbs of the PostgreSQL store. Each is one call of one function; the functions are in ``code/``."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.postgres.agents import AgentVerbs
from holdfast.stores.postgres.audit import AuditVerbs
from holdfast.stores.postgres.codec import PostgresCodec
from holdfast.stores.postgres.connectors import ConnectorVerbs
from holdfast.stores.postgres.dead_letters import DeadLetterVerbs
from holdfast.stores.postgres.endpoints import EndpointVerbs
from holdfast.stores.postgres.gates import GateVerbs
from holdfast.stores.postgres.jobs import CircumstanceVerbs, EnqueueVerb, OperatorVerbs
from holdfast.stores.postgres.leases import DutyVerbs, LeaseVerbs, SettleVerb, TurnVerbs
from holdfast.stores.postgres.ledger import LedgerVerbs
from holdfast.stores.postgres.limits import LimitVerbs
from holdfast.stores.postgres.payloads import PayloadVerbs
from holdfast.stores.postgres.retention import RetentionVerbs
from holdfast.stores.postgres.schedules import ScheduleVerbs
from holdfast.stores.postgres.steps import StepVerbs
from holdfast.stores.postgres.subscriptions import SubscriptionVerbs
from holdfast.stores.postgres.switches import SwitchVerbs
from holdfast.stores.postgres.tenants import TenantVerbs
from holdfast.stores.postgres.tokens import TokenVerbs
from holdfast.stores.postgres.workflows import WorkflowVerbs
from holdfast.stores.reads import Dialect, Reads


class PostgresVerbs(
    EnqueueVerb,
    LeaseVerbs,
    TurnVerbs,
    SettleVerb,
    DutyVerbs,
    OperatorVerbs,
    LedgerVerbs,
    StepVerbs,
    GateVerbs,
    AgentVerbs,
    ScheduleVerbs,
    WorkflowVerbs,
    LimitVerbs,
    SwitchVerbs,
    SubscriptionVerbs,
    CircumstanceVerbs,
    PayloadVerbs,
    TenantVerbs,
    RetentionVerbs,
    DeadLetterVerbs,
    AuditVerbs,
    TokenVerbs,
    ConnectorVerbs,
    EndpointVerbs,
    Reads,
):
    def __init__(self, schema: str) -> None:
        self._s = f'"{schema}".'
        self.dialect = Dialect(
            PostgresCodec(),
            self._s,
            percent=True,
            bind=self._bind,
            has=lambda column, parameter: f"{parameter} = any ({column})",
            nobody="{}",
            never="infinity",
            minute=lambda column: f"floor(date_part('epoch', {column}) / 60)::bigint",
        )

    def _bind(self, tenant: str) -> Statement:
        """Also keeps the server from compiling the reads that follow: their plans cost more than ``jit_above_cost`` on
        large tables, and compiling takes longer than the read. For this transaction only, so it works behind a pooler
        and leaves nothing on its connections."""
        return Statement(f"select {self._s}enter(%s), set_config('jit', 'off', true)", (tenant,), binds=True)

    @flow(single=True)
    def watch(self, job_id: str, tenant: str, seconds: float) -> Steps[None]:
        yield self._call("watch_job", "%s, %s, %s", job_id, seconds, tenant)

    @flow(single=True)
    def set_clock(self, shift: timedelta, stopped: datetime | None) -> Steps[None]:
        yield Statement(f"update {self._s}clock set shift = %s, stopped = %s", (shift, stopped))

    @flow(writes=False, single=True)
    def now(self) -> Steps[datetime]:
        rows = yield replace(self._call("clock_now", ""), reads=True)
        return self.dialect.codec.time(rows[0][0])
