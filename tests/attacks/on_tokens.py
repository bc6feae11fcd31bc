"""Attacks on API tokens: more rights, undone revocations, sessions that outlive their token.

`:api_token` is valid, `:session` was opened with it, `:revoked` is revoked.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, Attack, both, only_postgres

_COLUMNS = "id, tenant, name, roles, scopes, hash, prefix, parent_id, created_at, created_by, expires_at"
_HASH = "'" + "ab" * 32 + "'"


def _add(what: str, says: str | tuple[str, str], of: str = "api_token", /, **instead: str) -> Attack:
    """Insert a copy of an existing token with the given columns replaced."""
    values = dict(zip(_COLUMNS.split(", "), _COLUMNS.split(", "), strict=True))
    values |= {"id": ":unknown", "hash": _HASH} | instead
    return both(
        what,
        f"insert into api_token ({_COLUMNS}) select {', '.join(values.values())} from api_token where id = :{of}",
        says=says,
    )


# The tokens as psql and the sqlite3 shell insert them; values that the two write differently are named parameters.
_ISSUE = f"insert into api_token ({_COLUMNS}) values"
ISSUED = (
    *(
        f"{_ISSUE} (:{name}, 'default', 'ci', :roles, :none, '{digit * 64}', 'hf_{digit}', {parent}, {NOW}, 'ada',"
        " :soon)"
        for name, digit, parent in (
            ("api_token", "1", "null"),
            ("session", "2", ":api_token"),
            ("revoked", "3", "null"),
        )
    ),
    f"update api_token set revoked_at = {NOW}, revoked_by = 'ada' where id = :revoked",
)
_SESSION = {"parent_id": "id"}
_ENDED = "is revoked, expired or unknown"
_WIDE = "it cannot have more rights than its token or outlive it"
_FIXED = "a revoked token stays revoked"

TOKENS = [
    *(
        both(what, f"update api_token set {change} where id = :api_token", says=_FIXED)
        for what, change in (
            ("move a token to every tenant", "tenant = '*'"),
            ("remove the expiry of an API token", "expires_at = null"),
            ("change the hash of a token", f"hash = {_HASH}"),
            ("change the name of a token", "name = 'eve'"),
            ("change the issuer of a token", "created_by = 'eve'"),
        )
    ),
    both("undo a revocation", "update api_token set revoked_at = null, revoked_by = null", says=_FIXED),
    both("change who revoked a token", "update api_token set revoked_by = 'eve' where id = :revoked", says=_FIXED),
    both(
        "revoke a token without an actor",
        f"update api_token set revoked_at = {NOW} where id = :api_token",
        says="revoked_named",
    ),
    both(
        "delete a revoked token",
        "delete from api_token where id = :revoked",
        says=("tokens are kept for ninety days", "rows are never changed"),
    ),
    only_postgres("truncate the API tokens", "truncate api_token", says="rows are never changed"),
    _add("store a token instead of its hash", "hash_hex", hash="'hf_secret'"),
    _add("issue an expired token", "expires_later", expires_at="created_at"),
    _add("issue a token without a name", "name_named", name="' '"),
    _add("open a session with a revoked token", _ENDED, "revoked", **_SESSION, expires_at=":later"),
    _add("open a session with a session", _ENDED, "session", **_SESSION),
    _add("open a session for another tenant", _ENDED, **_SESSION, tenant="'umbrella'"),
    _add("open a session under another name", _WIDE, **_SESSION, name="'eve'"),
    _add("open a session that outlives its token", _WIDE, **_SESSION, expires_at=":later"),
]
