"""Reads that are the same on every store: one text, two dialects of parameters and values."""

from holdfast.stores.job_reads import JobReads, LedgerReads, OverviewReads
from holdfast.stores.reader import Dialect
from holdfast.stores.reads.agents import AgentReads
from holdfast.stores.reads.connectors import ConnectorReads
from holdfast.stores.reads.dead_letters import DeadLetterReads
from holdfast.stores.reads.endpoints import EndpointReads
from holdfast.stores.reads.gates import GateReads
from holdfast.stores.reads.hour import HourReads
from holdfast.stores.reads.limits import LimitReads
from holdfast.stores.reads.payloads import PayloadReads
from holdfast.stores.reads.pulse import PulseReads
from holdfast.stores.reads.retention import RetentionReads
from holdfast.stores.reads.schedules import ScheduleReads
from holdfast.stores.reads.tenants import TenantReads
from holdfast.stores.reads.tokens import TokenReads
from holdfast.stores.reads.workflows import WorkflowReads


class Reads(
    JobReads,
    GateReads,
    LedgerReads,
    OverviewReads,
    PulseReads,
    AgentReads,
    ScheduleReads,
    WorkflowReads,
    LimitReads,
    PayloadReads,
    HourReads,
    TenantReads,
    RetentionReads,
    DeadLetterReads,
    TokenReads,
    ConnectorReads,
    EndpointReads,
):
    """All of them; a store's verbs inherit this and give it their dialect."""


__all__ = ["Dialect", "Reads"]
