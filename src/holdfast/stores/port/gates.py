"""The part of the port about people: gates that jobs wait at, and what is decided there."""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.approvals.model import Answer, Ballot, Gate, GateFilter, Token, Vote
from holdfast.stores.flow import Flow


class GateVerbs(Protocol):
    def decide_gate(self, gate_id: str, ballot: Ballot, tenant: str) -> Flow[Answer]: ...
    def keep_gate_token(
        self, gate_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, tenant: str
    ) -> Flow[str | None]:
        """None when it is kept, or the reason why not."""
        ...

    def gate_hashes(self, gate_id: str, tenant: str) -> Flow[list[str]]: ...
    def gate_token(self, token_hash: str, tenant: str) -> Flow[Token | None]:
        """Whose a token is, until when it is good, and when it was used."""
        ...

    def attend_gates(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Flow[int]: ...
    def gate(self, gate_id: str, tenant: str) -> Flow[Gate | None]: ...
    def gates(self, wanted: GateFilter) -> Flow[list[Gate]]: ...
    def votes(self, gate_id: str, tenant: str) -> Flow[list[Vote]]: ...
