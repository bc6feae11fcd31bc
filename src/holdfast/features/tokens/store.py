"""API tokens in the database: port, shared reads, PostgreSQL and SQLite."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from holdfast.engine.ids import parse_id
from holdfast.features.tokens.model import ApiToken, Issuing
from holdfast.stores.codecs import Record, in_micros, micros
from holdfast.stores.flow import Rows, Statement, Steps, flow
from holdfast.stores.job_reads import Reader
from holdfast.stores.postgres.base import Calls
from holdfast.stores.reader import within
from holdfast.stores.sqlite.base import SqlitePart, any_tenant, begin_write, end_write, write
from holdfast.stores.sqlite.codec import SqliteCodec


class TokenReads(Reader):
    @flow(writes=False)
    def list(
        self, tenant: str, sessions: bool = False, before: str | None = None, limit: int = 50
    ) -> Steps[list[ApiToken]]:
        """Tokens, newest first, including expired and revoked ones; with ``sessions`` the browser sessions, too."""
        kind = "" if sessions else " and t.parent_id is null"
        older = "" if before is None else " and t.id < :before"
        text = (
            f"select {Record.columns(ApiToken, 't.')} from {{api_token}} t"
            f" where {within(tenant, 't.tenant')}{kind}{older} order by t.id desc limit {max(1, min(limit, 1000)):d}"
        )
        params = {} if before is None else {"before": parse_id(before)}
        return (yield from self._records(ApiToken, tenant, text, **params))


_COLUMNS = Record.columns(ApiToken)


class PostgresTokens(Calls, TokenReads):
    @flow(single=True)
    def issue(self, new: Issuing, actor: str, tenant: str) -> Steps[ApiToken]:
        arguments = "%s, %s, %s::text[], %s::text[], %s, %s, %s::timestamptz, %s::interval, %s, %s"
        token = (new.id, new.name, list(new.roles), list(new.scopes), new.hash, new.prefix)
        params = (*token, new.expires_at, _span(new.lasting), actor, tenant)
        return (yield from self._call_as(ApiToken, "issue_token", arguments, *params))[0]

    @flow(single=True)
    def revoke(self, token_id: str, actor: str, tenant: str) -> Steps[ApiToken | None]:
        """Revoke a token and its sessions; None if this tenant has no such token."""
        params = (parse_id(token_id), actor, tenant)
        return next(iter((yield from self._call_as(ApiToken, "revoke_token", "%s, %s, %s", *params))), None)

    @flow(single=True)
    def find(self, token_hash: str) -> Steps[ApiToken | None]:
        """The valid token with this hash, of any tenant: a caller that knows a hash has the token."""
        return next(iter((yield from self._call_as(ApiToken, "token_of", "%s", token_hash))), None)

    @flow(single=True)
    def used(self, token_hash: str) -> Steps[None]:
        """Record that it was used, at most once per minute."""
        yield self._call("token_used", "%s", token_hash)

    @flow(single=True)
    def open_session(
        self, token_hash: str, session_id: str, session_hash: str, prefix: str, ttl: float
    ) -> Steps[ApiToken | None]:
        """Open a session with the rights of this token, which it does not outlive; None if the token is not valid."""
        params = (token_hash, session_id, session_hash, prefix, _span(ttl))
        tokens = yield from self._call_as(ApiToken, "open_session", "%s, %s, %s, %s, %s::interval", *params)
        return next(iter(tokens), None)

    @flow(single=True)
    def end_session(self, session_hash: str) -> Steps[bool]:
        return (yield from self._flag("end_session", "%s", session_hash))


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


MINUTE = 60_000_000
_ISSUE = (
    "INSERT INTO holdfast_api_token"
    " (id, tenant, name, roles, scopes, hash, prefix, parent_id, created_at, created_by, expires_at)"
    " VALUES (:id, :tenant, :name, :roles, :scopes, :hash, :prefix, :parent, :now, :actor, :expires)"
    f" RETURNING {_COLUMNS}"
)
_REVOKE = (
    "UPDATE holdfast_api_token SET revoked_at = :now, revoked_by = :actor"
    " WHERE id = :id AND (:any OR tenant = :tenant) AND revoked_at IS NULL"
)
_ONE = f"SELECT {_COLUMNS} FROM holdfast_api_token WHERE id = :id AND (:any OR tenant = :tenant)"
_VALID = (
    f"SELECT {_COLUMNS} FROM holdfast_api_token WHERE hash = ? AND revoked_at IS NULL"
    " AND (expires_at IS NULL OR expires_at > (SELECT now FROM holdfast_present))"
)
_STALE_USE = (
    "SELECT p.now FROM holdfast_api_token, holdfast_present p WHERE hash = ?"
    f" AND (last_used_at IS NULL OR last_used_at <= p.now - {MINUTE})"
)
_USED = (
    "UPDATE holdfast_api_token SET last_used_at = :now"
    f" WHERE hash = :hash AND (last_used_at IS NULL OR last_used_at <= :now - {MINUTE})"
)


def _used_recently(_: object, token_hash: str) -> Steps[bool | None]:
    """True if the last use is recorded already and nothing has to be written."""
    return None if (yield Statement(_STALE_USE, (token_hash,))) else True


class SqliteTokens(SqlitePart, TokenReads):
    @flow()
    def issue(self, new: Issuing, actor: str, tenant: str) -> Steps[ApiToken]:
        now = yield from begin_write(actor)
        at = None if new.expires_at is None else micros(new.expires_at)
        expires = at if new.lasting is None else now + in_micros(new.lasting)
        row: dict[str, Any] = {
            "id": new.id,
            "tenant": tenant,
            "name": new.name,
            "hash": new.hash,
            "prefix": new.prefix,
        }
        row |= {"roles": json.dumps(new.roles), "scopes": json.dumps(new.scopes), "parent": None}
        rows = yield Statement(_ISSUE, {**row, "now": now, "actor": actor, "expires": expires})
        yield from end_write()
        return _tokens(rows)[0]

    @flow()
    def revoke(self, token_id: str, actor: str, tenant: str) -> Steps[ApiToken | None]:
        now = yield from begin_write(actor)
        which: dict[str, Any] = {"id": parse_id(token_id), "any": any_tenant(tenant), "tenant": tenant}
        yield Statement(_REVOKE, {**which, "now": now, "actor": actor})
        rows = yield Statement(_ONE, which)
        yield from end_write()
        return next(iter(_tokens(rows)), None)

    @flow(writes=False)
    def find(self, token_hash: str) -> Steps[ApiToken | None]:
        return next(iter(_tokens((yield Statement(_VALID, (token_hash,))))), None)

    @flow(peek=_used_recently)
    def used(self, token_hash: str) -> Steps[None]:
        yield from write(None, _USED, hash=token_hash)

    @flow()
    def open_session(
        self, token_hash: str, session_id: str, session_hash: str, prefix: str, ttl: float
    ) -> Steps[ApiToken | None]:
        token = next(iter(_tokens((yield Statement(_VALID, (token_hash,))))), None)
        if token is None or token.is_session:
            return None
        now = yield from begin_write(token.name)
        last = now + in_micros(ttl)
        row = {"id": session_id, "tenant": token.tenant, "name": token.name, "hash": session_hash, "prefix": prefix}
        row |= {"roles": json.dumps(token.roles), "scopes": json.dumps(token.scopes), "parent": token.id}
        expires = last if token.expires_at is None else min(last, micros(token.expires_at))
        rows = yield Statement(_ISSUE, {**row, "now": now, "actor": token.name, "expires": expires})
        yield from end_write()
        return _tokens(rows)[0]

    @flow()
    def end_session(self, session_hash: str) -> Steps[bool]:
        session = next(iter(_tokens((yield Statement(_VALID, (session_hash,))))), None)
        if session is None or not session.is_session:
            return False
        yield from write(session.name, _REVOKE, id=session.id, any=0, tenant=session.tenant)
        return True


def _tokens(rows: Rows) -> list[ApiToken]:
    decode = Record.decoder(ApiToken, SqliteCodec())
    return [decode(row) for row in rows]
