"""Writes that a person with a SQL shell might try, and the database's refusals. The documentation quotes this list."""

from __future__ import annotations

from tests.attacks.attack import Attack, attacks
from tests.attacks.on_agents import AGENTS
from tests.attacks.on_approvals import APPROVALS, STEPS, UNDECIDED, VOTES
from tests.attacks.on_audit import AUDIT
from tests.attacks.on_connectors import CONNECTORS
from tests.attacks.on_dead_letters import DEAD_LETTERS
from tests.attacks.on_facts import ARTIFACTS, FACTS, LEDGER
from tests.attacks.on_limits import LIMITS
from tests.attacks.on_pauses import PAUSES
from tests.attacks.on_payloads import PAYLOADS
from tests.attacks.on_retention import RETENTION
from tests.attacks.on_schedules import SCHEDULES
from tests.attacks.on_state import FENCE, INVARIANTS, ROWS
from tests.attacks.on_subscriptions import DELIVERIES, EXECUTORS, RETRIES
from tests.attacks.on_tenants import TENANTS
from tests.attacks.on_tokens import TOKENS
from tests.attacks.on_webhooks import WEBHOOKS
from tests.attacks.on_workflows import WORKFLOWS

_TABLES = (
    *(FACTS, LEDGER, ARTIFACTS, ROWS, INVARIANTS, FENCE, AGENTS, UNDECIDED, APPROVALS, VOTES, STEPS, SCHEDULES),
    *(WORKFLOWS, LIMITS, DELIVERIES, RETRIES, EXECUTORS, DEAD_LETTERS, AUDIT, PAUSES, TOKENS, TENANTS, RETENTION),
    *(PAYLOADS, WEBHOOKS, CONNECTORS),
)
ATTACKS: dict[str, Attack] = {attack.name: attack for table in _TABLES for attack in attacks(table)}
