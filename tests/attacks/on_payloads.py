"""Attacks on payloads (DP-4): forbidden data, changed references, changed text under a seal."""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

# The database has a rule for a kind, and a job with references whose payload is sealed with the key k1.
_SEALED = "'00000000-0000-7000-8000-0000000000b1'"
_RULE = "insert into payload_rule (tenant, kind, set_by, created_at, updated_at"
_ENQUEUE = "insert into job (tenant, kind, payload) values ('default', 'signal',"
_RESEALED = "insert into resealed (job_id, tenant, n, from_key, to_key, actor, at) values"
RULED = (
    f"{_RULE}, signal_only, max_bytes) values ('*', 'signal', 'ada', {NOW}, {NOW}, (1 = 1), 300)",
    f"insert into job (id, tenant, kind, payload) values ({_SEALED}, 'default', 'sealed',"
    """ '{"$holdfast": {"key": "k1", "sealed": "AAAA"}}')""",
    f"insert into reference (job_id, tenant, source_ref) values ({_SEALED}, 'default', 's3://in/7')",
)


def _seal(inside: str) -> str:
    return f"""update job set payload = '{{"$holdfast": {inside}}}' where id = {_SEALED}"""


_ONCE, _TWICE = (_seal(f'{{"key": "k2", "sealed": "{text}"}}') for text in ("BBBB", "CCCC"))
_RECORD = f"{_RESEALED} ({_SEALED}, 'default', 1, 'k1', 'k2', 'eve', {NOW})"
_NEVER = "never change"

_WRITTEN = ("references are written once", "no job")
_REFER = "insert into reference (job_id, tenant, source_ref) values"

PAYLOADS: Table = {
    "enqueue a forbidden key": (
        f"""{_ENQUEUE} '{{"rows": [{{"Password": "x"}}]}}')""",
        ("payload forbidden", "has a forbidden key at $.rows[0].Password"),
    ),
    "enqueue a forbidden key with escaped characters": (
        f"""{_ENQUEUE} '{{"p\\u0061ssword": "x"}}')""",
        ("payload forbidden", "has a forbidden key at $.password"),
    ),
    "enqueue a forbidden key hidden by a duplicate key": (
        f"""{_ENQUEUE} '{{"a": {{"token": "x"}}, "a": 1}}')""",
        ("payload forbidden", "has a forbidden key at $.a.token"),
    ),
    "enqueue a payload over its rule's limit": (
        f"""{_ENQUEUE} '{{"note": "{"x" * 300}"}}')""",
        ("payload over limit", "its rule allows 300"),
    ),
    "enqueue a forbidden key with the clock of an operation": (
        f"update clock set floor = (select max(n) from job_state), now = {NOW}"
        f"""; {_ENQUEUE} '{{"secret": "x"}}')"""
        "; update clock set now = null, floor = null",
        ("payload forbidden", None),
    ),
    "turn off the checks at enqueue for payload rules": (
        "update dispatch set ruled = (1 = 0)",
        "ruled cannot be turned off once it is set",
    ),
    "change a reference of a job": (
        f"update reference set source_ref = 's3://in/8' where job_id = {_SEALED}",
        "reference: rows are never changed",
    ),
    "delete the references of a job": (
        f"delete from reference where job_id = {_SEALED}",
        "reference: rows are never deleted while their job exists",
    ),
    "add a reference to a job that has none": (
        f"{_REFER} (:running, 'default', 's3://x')",
        ("references are written once", "or it has started"),
    ),
    "add a reference to an unknown job": (f"{_REFER} (:unknown, 'default', 's3://x')", _WRITTEN),
    "add a reference to another tenant's job": (f"{_REFER} (:queued, 'acme', 's3://x')", _WRITTEN),
    "truncate the references": ("truncate reference", (None, "rows are never changed")),
    "re-encrypt a payload without a record": (_ONCE, _NEVER),
    **{
        f"record a re-encryption and {what}": (f"{_RECORD}; {_seal(inside)}", _NEVER)
        for what, inside in (
            ("store it in the clear", '{"open": 1}'),
            ("store a longer text", '{"key": "k2", "sealed": "BBBBBBBB"}'),
            ("add a field", '{"key": "k2", "sealed": "BBBB", "also": 1}'),
            ("name another key", '{"key": "k3", "sealed": "BBBB"}'),
            ("point to another location", '{"key": "k2", "stored": "artifact://x"}'),
        )
    },
    "re-encrypt twice with one record": (f"{_RECORD}; {_ONCE}; {_TWICE}", _NEVER),
    "record the re-encryption of an unencrypted payload": (
        f"{_RESEALED} (:queued, 'default', 1, 'k1', 'k2', 'eve', {NOW})",
        "is not encrypted with",
    ),
    "skip a number in the re-encryption records": (
        f"{_RESEALED} ({_SEALED}, 'default', 2, 'k1', 'k2', 'eve', {NOW})",
        ("not its next re-encryption", "not its next re-encryption"),
    ),
    "delete the record of a re-encryption": (
        f"{_RECORD}; delete from resealed",
        "resealed: rows are never deleted while their job exists",
    ),
    "change the actor of a re-encryption": (
        f"{_RECORD}; update resealed set actor = 'ada'",
        "resealed: rows are never changed",
    ),
    **{
        f"set a rule {what}": (f"{_RULE}, {columns}) values ('default', {kind}, 'ada', {NOW}, {NOW}, {values})", says)
        for what, kind, columns, values, says in (
            ("that sets nothing", "'x'", "max_bytes", "null", "says_something"),
            ("without a name", "' '", "max_bytes", "300", "kind_named"),
            ("with an unknown classification", "'x'", "classification", "'secret'", "classification_known"),
            ("with a size too small for any payload", "'x'", "max_bytes", "1", "sizes_bounded"),
        )
    },
}
