"""What somebody with a SQL shell might try, and what the database answers. Docs quote this list."""

from __future__ import annotations

from tests.support.attack import Attack
from tests.support.attacks_on_agents import AGENTS
from tests.support.attacks_on_facts import ARTIFACTS, FACTS, LEDGER
from tests.support.attacks_on_limits import LIMITS
from tests.support.attacks_on_people import GATES, STEPS, WAYS_OUT, WORDS
from tests.support.attacks_on_state import FENCE, INVARIANTS, ROWS

_ON_PEOPLE = (*WAYS_OUT, *GATES, *WORDS, *STEPS)
ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (*FACTS, *LEDGER, *ARTIFACTS, *ROWS, *INVARIANTS, *FENCE, *AGENTS, *LIMITS, *_ON_PEOPLE)
}
