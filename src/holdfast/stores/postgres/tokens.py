"""The verbs of API tokens; the functions are in ``code/36_tokens``."""

from __future__ import annotations

from datetime import timedelta

from holdfast.engine.ids import parse_id
from holdfast.features.tokens.model import ApiToken, Issuing
from holdfast.stores.codecs import Record
from holdfast.stores.flow import Rows, Statement, Steps, flow
from holdfast.stores.reads import Reads

_COLUMNS = Record.columns(ApiToken)


class TokenVerbs(Reads):
    @flow(single=True)
    def issue_token(self, new: Issuing, actor: str, tenant: str) -> Steps[ApiToken]:
        rows = yield Statement(
            f"select {_COLUMNS} from {self.dialect.schema}issue_token("
            "%s, %s, %s::text[], %s::text[], %s, %s, %s::timestamptz, %s::interval, %s, %s)",
            (
                *(new.id, new.name, list(new.roles), list(new.scopes), new.hash, new.prefix),
                *(new.expires_at, _span(new.lasting), actor, tenant),
            ),
        )
        return self._tokens(rows)[0]

    @flow(single=True)
    def revoke_token(self, token_id: str, actor: str, tenant: str) -> Steps[ApiToken | None]:
        rows = yield Statement(
            f"select {_COLUMNS} from {self.dialect.schema}revoke_token(%s, %s, %s)", (parse_id(token_id), actor, tenant)
        )
        return next(iter(self._tokens(rows)), None)

    @flow(single=True)
    def token_of(self, token_hash: str) -> Steps[ApiToken | None]:
        rows = yield Statement(f"select {_COLUMNS} from {self.dialect.schema}token_of(%s)", (token_hash,))
        return next(iter(self._tokens(rows)), None)

    @flow(single=True)
    def token_used(self, token_hash: str) -> Steps[None]:
        yield Statement(f"select {self.dialect.schema}token_used(%s)", (token_hash,))

    @flow(single=True)
    def open_session(
        self, token_hash: str, session_id: str, session_hash: str, prefix: str, ttl: float
    ) -> Steps[ApiToken | None]:
        rows = yield Statement(
            f"select {_COLUMNS} from {self.dialect.schema}open_session(%s, %s, %s, %s, %s::interval)",
            (token_hash, session_id, session_hash, prefix, _span(ttl)),
        )
        return next(iter(self._tokens(rows)), None)

    @flow(single=True)
    def end_session(self, session_hash: str) -> Steps[bool]:
        rows = yield Statement(f"select {self.dialect.schema}end_session(%s)", (session_hash,))
        return bool(rows[0][0])

    def _tokens(self, rows: Rows) -> list[ApiToken]:
        decode = Record.decoder(ApiToken, self.dialect.codec)
        return [decode(row) for row in rows]


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
