"""Attacks on API tokens: more rights, undone revocations, sessions that outlive their token.

`:api_token` is valid, `:session` was opened with it, `:revoked` is revoked.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

_COLUMNS = "id, tenant, name, roles, scopes, hash, prefix, parent_id, created_at, created_by, expires_at"
_HASH = "'" + "ab" * 32 + "'"


def _add(of: str = "api_token", /, **instead: str) -> str:
    """Insert a copy of an existing token with the given columns replaced."""
    values = {name: name for name in _COLUMNS.split(", ")} | {"id": ":unknown", "hash": _HASH} | instead
    return f"insert into api_token ({_COLUMNS}) select {', '.join(values.values())} from api_token where id = :{of}"


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

TOKENS: Table = {
    **{
        what: (f"update api_token set {change} where id = :api_token", _FIXED)
        for what, change in (
            ("move a token to every tenant", "tenant = '*'"),
            ("remove the expiry of an API token", "expires_at = null"),
            ("change the hash of a token", f"hash = {_HASH}"),
            ("change the name of a token", "name = 'eve'"),
            ("change the issuer of a token", "created_by = 'eve'"),
        )
    },
    "undo a revocation": ("update api_token set revoked_at = null, revoked_by = null", _FIXED),
    "change who revoked a token": ("update api_token set revoked_by = 'eve' where id = :revoked", _FIXED),
    "revoke a token without an actor": (
        f"update api_token set revoked_at = {NOW} where id = :api_token",
        "revoked_named",
    ),
    "delete a revoked token": (
        "delete from api_token where id = :revoked",
        ("tokens are kept for ninety days", "rows are never changed"),
    ),
    "truncate the API tokens": ("truncate api_token", (None, "rows are never changed")),
    "store a token instead of its hash": (_add(hash="'hf_secret'"), "hash_hex"),
    "issue an expired token": (_add(expires_at="created_at"), "expires_later"),
    "issue a token without a name": (_add(name="' '"), "name_named"),
    "open a session with a revoked token": (_add("revoked", **_SESSION, expires_at=":later"), _ENDED),
    "open a session with a session": (_add("session", **_SESSION), _ENDED),
    "open a session for another tenant": (_add(**_SESSION, tenant="'umbrella'"), _ENDED),
    "open a session under another name": (_add(**_SESSION, name="'eve'"), _WIDE),
    "open a session that outlives its token": (_add(**_SESSION, expires_at=":later"), _WIDE),
}
