"""All verbs of the SQLite store."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.engine.times import MICROSECOND
from holdfast.stores.codecs import micros
from holdfast.stores.flow import Statement, Steps, flow
from holdfast.stores.reads import Dialect
from holdfast.stores.sqlite.base import ids_json
from holdfast.stores.sqlite.codec import NEVER, SqliteCodec
from holdfast.stores.sqlite.enqueue import EnqueueVerb
from holdfast.stores.sqlite.jobs import CircumstanceVerbs, OperatorVerbs
from holdfast.stores.sqlite.leases import DutyVerbs, TurnVerb
from holdfast.stores.sqlite.ledger import LedgerVerbs
from holdfast.stores.sqlite.operations.agents import AgentVerbs
from holdfast.stores.sqlite.operations.aging import AgingVerbs
from holdfast.stores.sqlite.operations.audit import AuditVerbs
from holdfast.stores.sqlite.operations.bulk import BulkVerbs
from holdfast.stores.sqlite.operations.connectors import ConnectorVerbs
from holdfast.stores.sqlite.operations.dead_letters import DeadLetterVerbs
from holdfast.stores.sqlite.operations.endpoints import EndpointVerbs
from holdfast.stores.sqlite.operations.gates import GateVerbs
from holdfast.stores.sqlite.operations.leftovers import LeftoverVerbs
from holdfast.stores.sqlite.operations.limits import LimitVerbs
from holdfast.stores.sqlite.operations.payloads import PayloadVerbs
from holdfast.stores.sqlite.operations.reservations import ReservationVerbs
from holdfast.stores.sqlite.operations.retention import RetentionVerbs
from holdfast.stores.sqlite.operations.schedules import ScheduleVerbs
from holdfast.stores.sqlite.operations.switches import SwitchVerbs
from holdfast.stores.sqlite.operations.templates import TemplateVerbs
from holdfast.stores.sqlite.operations.tenants import TenantVerbs
from holdfast.stores.sqlite.operations.tokens import TokenVerbs
from holdfast.stores.sqlite.operations.usage import UsageVerbs
from holdfast.stores.sqlite.operations.workflows import WorkflowVerbs
from holdfast.stores.sqlite.order import OrderVerb
from holdfast.stores.sqlite.quarantine import QuarantineVerb
from holdfast.stores.sqlite.settle import SettleVerb
from holdfast.stores.sqlite.steps import StepVerbs


class SqliteVerbs(
    EnqueueVerb,
    TurnVerb,
    SettleVerb,
    StepVerbs,
    GateVerbs,
    DutyVerbs,
    QuarantineVerb,
    WorkflowVerbs,
    OperatorVerbs,
    OrderVerb,
    LedgerVerbs,
    LimitVerbs,
    ReservationVerbs,
    SwitchVerbs,
    AgingVerbs,
    EndpointVerbs,
    TenantVerbs,
    CircumstanceVerbs,
    AgentVerbs,
    TemplateVerbs,
    ScheduleVerbs,
    RetentionVerbs,
    LeftoverVerbs,
    UsageVerbs,
    PayloadVerbs,
    DeadLetterVerbs,
    BulkVerbs,
    AuditVerbs,
    TokenVerbs,
    ConnectorVerbs,
):
    dialect = Dialect(
        SqliteCodec(),
        "",
        percent=False,
        bind=lambda tenant: None,
        has=lambda column, parameter: f"exists (select 1 from json_each({column}) where value = {parameter})",
        nobody="[]",
        listed=ids_json,
        never=NEVER,
        minute=lambda column: f"({column} / 60000000)",
        by_index=lambda name: f" indexed by {name}",
    )

    @flow()
    def set_clock(self, shift: timedelta, stopped: datetime | None) -> Steps[None]:
        moment = None if stopped is None else micros(stopped)
        yield Statement("UPDATE clock SET shift = ?, stopped = ?", (shift // MICROSECOND, moment))

    @flow(writes=False)
    def now(self) -> Steps[datetime]:
        rows = yield Statement("SELECT now FROM present")
        return self.dialect.codec.time(rows[0][0])
