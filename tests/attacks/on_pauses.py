"""Attacks on what is paused (DP-18): jobs where none are accepted, a pause that nobody heeds, another story of it."""

from __future__ import annotations

from tests.attacks.attack import NOW, both, only_postgres

# The small world: a kind of which nothing is begun and nothing accepted.
_PAUSE = "insert into pause (tenant, scope, name, reason, refuse_enqueue, set_by, since"
PAUSED = (f"{_PAUSE}) values ('default', 'kind', 'stopped', 'it loops', (1 = 1), 'ada', {NOW})",)

PAUSES = [
    both(
        "enqueue what is not accepted",
        "insert into job (id, kind, tenant) values (:unknown, 'stopped', 'default')",
        says=("paused: no jobs of this kind are accepted", "jobs of kind stopped are refused"),
    ),
    only_postgres(
        "enqueue what is not accepted, with a setting",
        "set local holdfast.own = 'on'",
        "insert into job (id, kind, tenant) values (:unknown, 'stopped', 'default')",
        says="jobs of kind stopped are refused",
    ),
    only_postgres(
        "enqueue what is not accepted, as the database itself",
        "insert into job (id, kind, tenant, parent_id, source_system)"
        " values (:unknown, 'stopped', 'default', :asking, 'holdfast')",
        says="jobs of kind stopped are refused",
    ),
    both(
        "say that nothing is to be judged at enqueue",
        "update dispatch set ruled = (1 = 0)",
        says="ruled cannot be turned off once it is set",
    ),
    both(
        "let a pause be for something else",
        "update pause set name = 'nothing' where name = 'stopped'",
        says="scope, name and start time",
    ),
    both(
        "have it paused since another time",
        "update pause set since = :later where name = 'stopped'",
        says="scope, name and start time",
    ),
    only_postgres("forget all that is paused", "truncate pause", says="rows are never changed"),
    *(
        both(
            f"pause {what}",
            f"{_PAUSE}, until) values ('default', {scope}, {name}, {reason}, (1 = 0), {by}, :later, {until})",
            says=says,
        )
        for what, scope, name, reason, by, until, says in (
            ("nothing known", "'planet'", "'x'", "'r'", "'ada'", "null", "scope_known"),
            ("without a name", "'queue'", "' '", "'r'", "'ada'", "null", "name_named"),
            ("everything under a name", "'all'", "'x'", "'r'", "'ada'", "null", "name_named"),
            ("without a reason", "'queue'", "'x'", "'  '", "'ada'", "null", "reason_given"),
            ("without saying who", "'queue'", "'x'", "'r'", "''", "null", "set_by_named"),
            ("for no time", "'queue'", "'x'", "'r'", "'ada'", ":later", "until_later"),
        )
    ),
]
