"""Attacks on payloads (DP-4): data where only signals may be, other references, other words under a seal."""

from __future__ import annotations

from tests.attacks.attack import NOW, both, only_postgres, only_sqlite

# The small world: a rule for a kind, and a job with references whose payload is sealed with the key k1.
_SEALED = "'00000000-0000-7000-8000-0000000000b1'"
_RULE = "insert into payload_rule (tenant, kind, set_by, created_at, updated_at"
_ENQUEUE = "insert into job (tenant, kind, payload) values ('default', 'signal',"
_NOTE = "insert into resealed (job_id, tenant, n, from_key, to_key, actor, at) values"
RULED = (
    f"{_RULE}, signal_only, max_bytes) values ('*', 'signal', 'ada', {NOW}, {NOW}, (1 = 1), 300)",
    f"insert into job (id, tenant, kind, payload) values ({_SEALED}, 'default', 'sealed',"
    """ '{"$holdfast": {"key": "k1", "sealed": "AAAA"}}')""",
    f"insert into reference (job_id, tenant, source_ref) values ({_SEALED}, 'default', 's3://in/7')",
)


def _seal(inside: str) -> str:
    return f"""update job set payload = '{{"$holdfast": {inside}}}' where id = {_SEALED}"""


_WRITE_DOWN = f"{_NOTE} ({_SEALED}, 'default', 1, 'k1', 'k2', 'eve', {NOW})"
_NEVER = "never change"

PAYLOADS = [
    both(
        "enqueue data",
        f"""{_ENQUEUE} '{{"rows": [{{"Password": "x"}}]}}')""",
        says=("payload forbidden", "has a forbidden key at $.rows[0].Password"),
    ),
    both(
        "enqueue data under an escaped name",
        f"""{_ENQUEUE} '{{"p\\u0061ssword": "x"}}')""",
        says=("payload forbidden", "has a forbidden key at $.password"),
    ),
    both(
        "enqueue data that a second key of the same name covers",
        f"""{_ENQUEUE} '{{"a": {{"token": "x"}}, "a": 1}}')""",
        says=("payload forbidden", "has a forbidden key at $.a.token"),
    ),
    both(
        "enqueue more than is allowed",
        f"""{_ENQUEUE} '{{"note": "{"x" * 300}"}}')""",
        says=("payload over limit", "its rule allows 300"),
    ),
    only_sqlite(
        "enqueue data as an operation would",
        f"update clock set floor = (select max(n) from job_state), now = {NOW}",
        f"""{_ENQUEUE} '{{"secret": "x"}}')""",
        "update clock set now = null, floor = null",
        says="payload forbidden",
    ),
    both(
        "have nothing judged any more",
        "update dispatch set ruled = (1 = 0)",
        says="ruled cannot be turned off once it is set",
    ),
    both(
        "let a job be about something else",
        f"update reference set source_ref = 's3://in/8' where job_id = {_SEALED}",
        says=("never changed", "rows are never changed"),
    ),
    both(
        "forget what a job is about",
        f"delete from reference where job_id = {_SEALED}",
        says=("never deleted while its job exists", "never deleted while their job exists"),
    ),
    both(
        "give a reference to no job",
        "insert into reference (job_id, tenant, source_ref) values (:unknown, 'default', 's3://x')",
        says=("references are written once", "no job"),
    ),
    both(
        "give a reference to another tenant's job",
        "insert into reference (job_id, tenant, source_ref) values (:queued, 'acme', 's3://x')",
        says=("references are written once", "no job"),
    ),
    only_postgres("forget all references", "truncate reference", says="rows are never changed"),
    both(
        "seal with another key in silence",
        _seal('{"key": "k2", "sealed": "BBBB"}'),
        says=_NEVER,
    ),
    *(
        both(f"say that it is sealed anew, and {what}", _WRITE_DOWN, _seal(inside), says=_NEVER)
        for what, inside in (
            ("leave it open", '{"open": 1}'),
            ("put more there", '{"key": "k2", "sealed": "BBBBBBBB"}'),
            ("put something beside it", '{"key": "k2", "sealed": "BBBB", "also": 1}'),
            ("name another key", '{"key": "k3", "sealed": "BBBB"}'),
            ("point elsewhere", '{"key": "k2", "stored": "artifact://x"}'),
        )
    ),
    both(
        "seal anew twice for one note",
        _WRITE_DOWN,
        _seal('{"key": "k2", "sealed": "BBBB"}'),
        _seal('{"key": "k2", "sealed": "CCCC"}'),
        says=_NEVER,
    ),
    both(
        "say that what is not sealed is sealed anew",
        f"{_NOTE} (:queued, 'default', 1, 'k1', 'k2', 'eve', {NOW})",
        says="is not encrypted with",
    ),
    both(
        "leave a gap in what was sealed anew",
        f"{_NOTE} ({_SEALED}, 'default', 2, 'k1', 'k2', 'eve', {NOW})",
        says=("not its next re-encryption", "not its next re-encryption"),
    ),
    both(
        "forget that it was sealed anew",
        _WRITE_DOWN,
        "delete from resealed",
        says=("the record of a re-encryption never changes", "never deleted while their job exists"),
    ),
    both(
        "say that somebody else sealed it anew",
        _WRITE_DOWN,
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
            ("that says nothing", "'x'", "max_bytes", "null", "says_something"),
            ("without a name", "' '", "max_bytes", "300", "kind_named"),
            ("of no known class", "'x'", "classification", "'secret'", "classification_known"),
            ("that lets nothing in", "'x'", "max_bytes", "1", "sizes_bounded"),
        )
    ),
]
