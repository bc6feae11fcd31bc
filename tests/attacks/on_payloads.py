"""Attacks on payloads (DP-4): forbidden data, changed references, changed text under a seal."""

from __future__ import annotations

from tests.attacks.attack import NOW, both, only_postgres, only_sqlite

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


_RECORD = f"{_RESEALED} ({_SEALED}, 'default', 1, 'k1', 'k2', 'eve', {NOW})"
_NEVER = "never change"

PAYLOADS = [
    both(
        "enqueue a forbidden key",
        f"""{_ENQUEUE} '{{"rows": [{{"Password": "x"}}]}}')""",
        says=("payload forbidden", "has a forbidden key at $.rows[0].Password"),
    ),
    both(
        "enqueue a forbidden key with escaped characters",
        f"""{_ENQUEUE} '{{"p\\u0061ssword": "x"}}')""",
        says=("payload forbidden", "has a forbidden key at $.password"),
    ),
    both(
        "enqueue a forbidden key hidden by a duplicate key",
        f"""{_ENQUEUE} '{{"a": {{"token": "x"}}, "a": 1}}')""",
        says=("payload forbidden", "has a forbidden key at $.a.token"),
    ),
    both(
        "enqueue a payload over its rule's limit",
        f"""{_ENQUEUE} '{{"note": "{"x" * 300}"}}')""",
        says=("payload over limit", "its rule allows 300"),
    ),
    only_sqlite(
        "enqueue a forbidden key with the clock of an operation",
        f"update clock set floor = (select max(n) from job_state), now = {NOW}",
        f"""{_ENQUEUE} '{{"secret": "x"}}')""",
        "update clock set now = null, floor = null",
        says="payload forbidden",
    ),
    both(
        "turn off the checks at enqueue for payload rules",
        "update dispatch set ruled = (1 = 0)",
        says="ruled cannot be turned off once it is set",
    ),
    both(
        "change a reference of a job",
        f"update reference set source_ref = 's3://in/8' where job_id = {_SEALED}",
        says=("never changed", "rows are never changed"),
    ),
    both(
        "delete the references of a job",
        f"delete from reference where job_id = {_SEALED}",
        says=("never deleted while its job exists", "never deleted while their job exists"),
    ),
    both(
        "add a reference to an unknown job",
        "insert into reference (job_id, tenant, source_ref) values (:unknown, 'default', 's3://x')",
        says=("references are written once", "no job"),
    ),
    both(
        "add a reference to another tenant's job",
        "insert into reference (job_id, tenant, source_ref) values (:queued, 'acme', 's3://x')",
        says=("references are written once", "no job"),
    ),
    only_postgres("truncate the references", "truncate reference", says="rows are never changed"),
    both("re-encrypt a payload without a record", _seal('{"key": "k2", "sealed": "BBBB"}'), says=_NEVER),
    *(
        both(f"record a re-encryption and {what}", _RECORD, _seal(inside), says=_NEVER)
        for what, inside in (
            ("store it in the clear", '{"open": 1}'),
            ("store a longer text", '{"key": "k2", "sealed": "BBBBBBBB"}'),
            ("add a field", '{"key": "k2", "sealed": "BBBB", "also": 1}'),
            ("name another key", '{"key": "k3", "sealed": "BBBB"}'),
            ("point to another location", '{"key": "k2", "stored": "artifact://x"}'),
        )
    ),
    both(
        "re-encrypt twice with one record",
        _RECORD,
        _seal('{"key": "k2", "sealed": "BBBB"}'),
        _seal('{"key": "k2", "sealed": "CCCC"}'),
        says=_NEVER,
    ),
    both(
        "record the re-encryption of an unencrypted payload",
        f"{_RESEALED} (:queued, 'default', 1, 'k1', 'k2', 'eve', {NOW})",
        says="is not encrypted with",
    ),
    both(
        "skip a number in the re-encryption records",
        f"{_RESEALED} ({_SEALED}, 'default', 2, 'k1', 'k2', 'eve', {NOW})",
        says=("not its next re-encryption", "not its next re-encryption"),
    ),
    both(
        "delete the record of a re-encryption",
        _RECORD,
        "delete from resealed",
        says=("the record of a re-encryption never changes", "never deleted while their job exists"),
    ),
    both(
        "change the actor of a re-encryption",
        _RECORD,
        "update resealed set actor = 'ada'",
        says=("the record of a re-encryption never changes", "rows are never changed"),
    ),
    *(
        both(
            f"set a rule {what}",
            f"{_RULE}, {columns}) values ('default', {kind}, 'ada', {NOW}, {NOW}, {values})",
            says=says,
        )
        for what, kind, columns, values, says in (
            ("that sets nothing", "'x'", "max_bytes", "null", "says_something"),
            ("without a name", "' '", "max_bytes", "300", "kind_named"),
            ("with an unknown classification", "'x'", "classification", "'secret'", "classification_known"),
            ("with a size too small for any payload", "'x'", "max_bytes", "1", "sizes_bounded"),
        )
    ),
]
