"""Attacks on API tokens (rule 25): one that may more, one that comes back, a session that outlives what it came from.

`:api_token` is good for a while, `:session` was opened with it, `:revoked` was revoked.
"""

from __future__ import annotations

from tests.attacks.attack import NOW, Attack, both, only_postgres

_COLUMNS = "id, tenant, name, roles, scopes, hash, prefix, parent_id, created_at, created_by, expires_at"
_HASH = "'" + "ab" * 32 + "'"


def _add(what: str, says: str | tuple[str, str], of: str = "api_token", /, **instead: str) -> Attack:
    """A row like that of a token that is there, with something else in its place."""
    values = dict(zip(_COLUMNS.split(", "), _COLUMNS.split(", "), strict=True))
    values |= {"id": ":unknown", "hash": _HASH} | instead
    return both(
        what,
        f"insert into api_token ({_COLUMNS}) select {', '.join(values.values())} from api_token where id = :{of}",
        says=says,
    )


# The small world by hand: as psql and the sqlite3 shell make it, with what the two write differently as names.
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
        both(f"let a token {what}", f"update api_token set {change} where id = :api_token", says=_FIXED)
        for what, change in (
            ("be another tenant's", "tenant = '*'"),
            ("last for ever", "expires_at = null"),
            ("be somebody else's", f"hash = {_HASH}"),
            ("stand for another person", "name = 'eve'"),
            ("have been issued by another", "created_by = 'eve'"),
        )
    ),
    both("take a revocation back", "update api_token set revoked_at = null, revoked_by = null", says=_FIXED),
    both("say that another revoked it", "update api_token set revoked_by = 'eve' where id = :revoked", says=_FIXED),
    both(
        "revoke without a name",
        f"update api_token set revoked_at = {NOW} where id = :api_token",
        says="revoked_named",
    ),
    both(
        "forget a token",
        "delete from api_token where id = :revoked",
        says=("tokens are kept for ninety days", "rows are never changed"),
    ),
    only_postgres("forget all tokens", "truncate api_token", says="rows are never changed"),
    _add("keep the token instead of its hash", "hash_hex", hash="'hf_secret'"),
    _add("issue one that is over", "expires_later", expires_at="created_at"),
    _add("issue one to nobody", "name_named", name="' '"),
    _add("open a session with a token that is revoked", _ENDED, "revoked", **_SESSION, expires_at=":later"),
    _add("open a session with a session", _ENDED, "session", **_SESSION),
    _add("open a session for another tenant", _ENDED, **_SESSION, tenant="'umbrella'"),
    _add("open a session under another name", _WIDE, **_SESSION, name="'eve'"),
    _add("open a session that outlives its token", _WIDE, **_SESSION, expires_at=":later"),
]
