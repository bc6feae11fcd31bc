"""What people do in a test: look at what is asked, and say yes or no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.app import App
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import Conflict, NotFound
from holdfast.features.approvals.model import Gate, GateFilter, GateState, VerdictWord, Vote

SOMEBODY = "somebody"


@dataclass(frozen=True, slots=True)
class Decided:
    """A gate that is closed, and what was said."""

    name: str
    state: GateState
    job_id: str
    gate: Gate
    votes: tuple[Vote, ...]


class People:
    def __init__(self, app: App) -> None:
        self._app = app

    def gates(self, state: GateState | None = "open", name: str | None = None) -> list[Gate]:
        client = self._app.client
        found: list[Gate] = []
        after: str | None = None
        while page := client.run(
            client.verbs.gates(GateFilter(tenant=EVERY_TENANT, state=state, name=name, after=after))
        ):
            found += page
            after = page[-1].id
        return found

    def decisions(self) -> list[Decided]:
        closed = [gate for gate in self.gates(None) if gate.state != "open"]
        client = self._app.client
        return [
            Decided(g.name, g.state, g.job_id, g, tuple(client.run(client.verbs.votes(g.id, EVERY_TENANT))))
            for g in sorted(closed, key=lambda gate: gate.decided_at or gate.opened_at)
        ]

    def decide(self, verdict: VerdictWord, which: str, by: str | None, **said: Any) -> GateState:
        """``which`` is the name of the one open gate that is called so, or the id of one."""
        gate = self._open(which)
        if by is not None:
            return self._say(verdict, gate, by, said)
        state: GateState = gate.state
        for person in self._willing(gate, 1 if verdict == "deny" else gate.quorum):
            state = self._say(verdict, gate, person, said)
        return state

    def _say(self, verdict: VerdictWord, gate: Gate, person: str, said: dict[str, Any]) -> GateState:
        return self._app.approvals.decide(verdict, gate.id, person, how="test", tenant=gate.tenant, **said).state

    def _open(self, which: str) -> Gate:
        asked = self.gates()
        found = [gate for gate in asked if which in (gate.name, gate.id)]
        if not found:
            names = ", ".join(sorted({gate.name for gate in asked})) or "nothing"
            raise NotFound(f"nobody asks for {which!r}; what is asked for: {names}")
        if len(found) > 1:
            ids = ", ".join(gate.id for gate in found)
            raise Conflict(f"{len(found)} jobs ask for {which!r}", code="gate_ambiguous", fix=f"Give an id: {ids}.")
        return found[0]

    def _willing(self, gate: Gate, needed: int) -> list[str]:
        """As many people as it takes: those who may, and have not said anything yet."""
        client = self._app.client
        said = {vote.person for vote in client.run(client.verbs.votes(gate.id, EVERY_TENANT))}
        kept_out = said | ({gate.requester} if gate.not_requester else set())
        anybody = (f"{SOMEBODY} {n}" if n else SOMEBODY for n in range(len(kept_out) + needed + 1))
        able = [person for person in gate.people or tuple(anybody) if person not in kept_out]
        return able[: max(0, needed - len(said))]
