"""Approval gates; the functions are in ``code/49_gates.sql``."""

from __future__ import annotations

import json

from holdfast.engine.ids import parse_id
from holdfast.engine.job import EVERY_TENANT
from holdfast.features.approvals.model import Answer, Ballot, Token
from holdfast.stores.flow import Steps, flow
from holdfast.stores.postgres.base import Calls


class GateVerbs(Calls):
    def _decide_again(self, gate_id: str, ballot: Ballot, tenant: str) -> Steps[Answer]:
        """What is refused now may be so because our first try came through: then the word we said is there."""
        answer = yield from self.decide_gate(gate_id, ballot, tenant).start()
        if answer.reason not in ("already_voted", "already_decided", "token_used"):
            return answer
        word = (parse_id(gate_id), ballot.verdict, ballot.person, ballot.how, ballot.token_hash, tenant)
        said = yield self._call("said", "%s, %s, %s, %s, %s, %s", *word)
        return Answer(answer.gate_id, answer.state, False, None) if said[0][0] else answer

    @flow(single=True, repeat=_decide_again)
    def decide_gate(self, gate_id: str, ballot: Ballot, tenant: str) -> Steps[Answer]:
        rows = yield self._call(
            "decide_gate",
            "%s, %s, %s, %s, %s::json, %s, %s, %s",
            parse_id(gate_id),
            ballot.verdict,
            ballot.person,
            ballot.comment,
            None if ballot.data is None else json.dumps(ballot.data),
            ballot.how,
            ballot.token_hash,
            tenant,
        )
        found, state, refused, reason = rows[0]
        return Answer(str(found), state, refused, reason)

    @flow(single=True)
    def keep_gate_token(
        self, gate_id: str, token_hash: str, person: str | None, ttl: float | None, actor: str, tenant: str
    ) -> Steps[str | None]:
        rows = yield self._call(
            "keep_gate_token",
            "%s, %s, %s, make_interval(secs => %s::float8), %s, %s",
            parse_id(gate_id),
            token_hash,
            person,
            ttl,
            actor,
            tenant,
        )
        return rows[0][0]  # type: ignore[no-any-return]

    @flow(single=True)
    def gate_hashes(self, gate_id: str, tenant: str) -> Steps[list[str]]:
        rows = yield self._call("gate_hashes", "%s, %s", parse_id(gate_id), tenant)
        return [row[0] for row in rows]

    @flow(single=True)
    def gate_token(self, token_hash: str, tenant: str) -> Steps[Token | None]:
        rows = yield self._call("gate_token_of", "%s, %s", token_hash, tenant)
        return Token(*rows[0]) if rows else None

    @flow(single=True)
    def attend_gates(self, want: int = 1000, tenant: str = EVERY_TENANT) -> Steps[int]:
        rows = yield self._call("attend_gates", "%s, %s", want, tenant)
        return int(rows[0][0])
