"""What somebody with a SQL shell might try, and what the database answers. Docs quote this list."""

from __future__ import annotations

from tests.support.attack import Attack
from tests.support.attacks_on_agents import AGENTS
from tests.support.attacks_on_audit import AUDIT
from tests.support.attacks_on_connectors import CONNECTORS
from tests.support.attacks_on_dead_letters import DEAD_LETTERS
from tests.support.attacks_on_endpoints import ENDPOINTS
from tests.support.attacks_on_facts import ARTIFACTS, FACTS, LEDGER
from tests.support.attacks_on_limits import LIMITS
from tests.support.attacks_on_payloads import PAYLOADS
from tests.support.attacks_on_people import GATES, STEPS, WAYS_OUT, WORDS
from tests.support.attacks_on_retention import RETENTION
from tests.support.attacks_on_schedules import SCHEDULES
from tests.support.attacks_on_state import FENCE, INVARIANTS, ROWS
from tests.support.attacks_on_subscriptions import DELIVERIES, EXECUTORS, RETRIES
from tests.support.attacks_on_switches import SWITCHES
from tests.support.attacks_on_tenants import TENANTS
from tests.support.attacks_on_tokens import TOKENS
from tests.support.attacks_on_workflows import WORKFLOWS

_ON_PEOPLE = (*WAYS_OUT, *GATES, *WORDS, *STEPS)
_ON_JOBS = (*FACTS, *LEDGER, *ARTIFACTS, *ROWS, *INVARIANTS, *FENCE)
_ON_FOLLOWING = (*DELIVERIES, *RETRIES, *EXECUTORS)
_ON_GOVERNANCE = (
    *(*DEAD_LETTERS, *AUDIT, *SWITCHES, *TOKENS, *TENANTS, *RETENTION, *PAYLOADS),
    *(*ENDPOINTS, *CONNECTORS),
)
_ALL = (*_ON_JOBS, *AGENTS, *_ON_PEOPLE, *SCHEDULES, *WORKFLOWS, *LIMITS, *_ON_FOLLOWING, *_ON_GOVERNANCE)
ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _ALL}
