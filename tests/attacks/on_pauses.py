"""Attacks on pauses (DP-18): jobs of a paused kind, a pause without effect, a changed record of it."""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

# The database has a paused kind: no job of it starts, and no job of it is accepted.
_PAUSE = "insert into pause (tenant, scope, name, reason, refuse_enqueue, set_by, since"
PAUSED = (f"{_PAUSE}) values ('default', 'kind', 'stopped', 'it loops', (1 = 1), 'ada', {NOW})",)

PAUSES: Table = {
    "enqueue a paused kind": (
        "insert into job (id, kind, tenant) values (:unknown, 'stopped', 'default')",
        ("paused: no jobs of this kind are accepted", "jobs of kind stopped are refused"),
    ),
    "enqueue a paused kind with an internal setting": (
        "set local holdfast.own = 'on'; insert into job (id, kind, tenant) values (:unknown, 'stopped', 'default')",
        (None, "jobs of kind stopped are refused"),
    ),
    "enqueue a paused kind as the source system holdfast": (
        "insert into job (id, kind, tenant, parent_id, source_system)"
        " values (:unknown, 'stopped', 'default', :asking, 'holdfast')",
        (None, "jobs of kind stopped are refused"),
    ),
    "turn off the checks at enqueue for pauses": (
        "update dispatch set ruled = (1 = 0)",
        "ruled cannot be turned off once it is set",
    ),
    "change the name of a pause": (
        "update pause set name = 'nothing' where name = 'stopped'",
        "scope, name, since cannot change",
    ),
    "change the start of a pause": (
        "update pause set since = :later where name = 'stopped'",
        "scope, name, since cannot change",
    ),
    "truncate the pauses": ("truncate pause", (None, "rows are never changed")),
    **{
        f"pause {what}": (
            f"{_PAUSE}, until) values ('default', {scope}, {name}, {reason}, (1 = 0), {by}, :later, {until})",
            says,
        )
        for what, scope, name, reason, by, until, says in (
            ("an unknown scope", "'planet'", "'x'", "'r'", "'ada'", "null", "scope_known"),
            ("without a name", "'queue'", "' '", "'r'", "'ada'", "null", "name_named"),
            ("everything under a name", "'all'", "'x'", "'r'", "'ada'", "null", "name_named"),
            ("without a reason", "'queue'", "'x'", "'  '", "'ada'", "null", "reason_given"),
            ("without an actor", "'queue'", "'x'", "'r'", "''", "null", "set_by_named"),
            ("with an end that is not after its start", "'queue'", "'x'", "'r'", "'ada'", ":later", "until_later"),
        )
    },
}
