"""Attacks on the audit trail (HF-4): changed seals, a cut or forked chain, actions in another person's name."""

from __future__ import annotations

from holdfast.features.audit.model import Seal
from tests.attacks.attack import NOW, both, only_postgres, only_sqlite

_COLUMNS = ", ".join(Seal.__slots__)
_FORKED = f"insert into seal ({_COLUMNS}) select {_COLUMNS.replace('number', 'number + 1')} from seal where number = 1"
_ACTION = "insert into action (tenant, at, actor, type, subject, name"

AUDIT = [
    both(
        "change a seal", "update seal set digest = previous", says=("seals are never changed", "rows are never changed")
    ),
    both(
        "delete the newest seal",
        "delete from seal where number = (select max(number) from seal)",
        says=("seals are never deleted", "rows are never changed"),
    ),
    both("fork the chain of seals", _FORKED, says=("must continue the newest one", "must continue the newest seal")),
    only_sqlite(
        "replace a seal",
        f"insert or replace into seal ({_COLUMNS}) select {_COLUMNS} from seal where number = 1",
        says="must continue the newest one",
    ),
    only_postgres("truncate the seals", "truncate seal", says="rows are never changed"),
    both(
        "change the actor of an action",
        "update action set actor = 'ada'",
        says=("actions are never changed", "rows are never changed"),
    ),
    both(
        "delete the recorded actions",
        "delete from action",
        says=("actions are never deleted", "rows are never changed"),
    ),
    both(
        "record an action in another person's name",
        f"{_ACTION}) values ('default', {NOW}, 'mallory', 'add', 'limit', 'x')",
        says="must be written by its actor",
    ),
    both(
        "record a purge without the range of its events",
        f"{_ACTION}) values ('default', {NOW}, (select actor from present), 'purge', 'ledger', '1 jobs')",
        says="range_of_purge",
    ),
]
