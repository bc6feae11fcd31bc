"""Moves around limits, and what has to be seen to before a move whose outcome hangs on who is parked.

To compare what can be compared, duties run until they find nothing before anybody claims: then nobody is parked but
at a limit that is full, in every store, and who is begun follows from the rule alone.
"""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.domain.limits import Bucket, Rule
from tests.model.drafts import scopes
from tests.model.durable import Durable

MOST_LIMITS = 3
LIMITED = [
    *(("all", "*"), ("queue", "default"), ("queue", "*"), ("kind", "mail"), ("kind", "*"), ("key", "c1"), ("key", "*")),
    *(("resource", "gpu"), ("agent", "planner"), ("agent", "*"), ("tenant", "a"), ("tenant", "*")),
]
UNPARK = (
    "update {job_state} set due_at = null, note = null, held_by = null"
    " where held_by is not null and due_at is not null and state = 'queued'"
)


class Governed(Durable):
    def see_to_a_limit(self, data: st.DataObject) -> None:
        """Set, set anew or removed. Not while an agent is disabled: whom a claim has looked at in vain, of all who
        are put off then, is each store's own."""
        known = self.model.limits
        what = data.draw(st.sampled_from(["set", "set", "remove"]))
        scope, name = data.draw(st.sampled_from(LIMITED), label="limited")
        bucket = Bucket(data.draw(scopes, label="tenant"), scope, name)
        rather = data.draw(st.sampled_from([bucket, *known]), label="which")
        most = data.draw(st.sampled_from([0, 1, 1, 2]), label="concurrency")
        if what == "remove" or len(known) >= MOST_LIMITS:
            self.play(lambda side: side.remove_limit(rather.scope, rather.name, "an operator", rather.tenant))
        elif not self.anyone_disabled():
            rule = Rule(rather.scope, rather.name, most)
            self.play(lambda side: side.set_limit(rule, "an operator", rather.tenant))

    def anyone_disabled(self) -> bool:
        return any(agent.disabled for agent in self.model.agents.values())

    def attend_limits(self) -> None:
        """As any worker does every second."""
        if self.model.may_park or self.model.reservations:
            self.play(lambda side: side.attend_limits())

    def unpark_by_hand(self) -> None:
        """For a move that is refused to whoever is parked, which of several full limits it was may decide."""
        for player in self.players.values():
            if self.model.may_park:
                player.by_hand(UNPARK)
