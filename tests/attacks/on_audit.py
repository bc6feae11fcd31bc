"""Attacks on the audit trail (HF-4): changed seals, a cut or forked chain, actions in another person's name."""

from __future__ import annotations

from holdfast.features.audit.model import Seal
from tests.attacks.attack import NOW, Table

_COLUMNS = ", ".join(Seal.__slots__)
_FORKED = f"insert into seal ({_COLUMNS}) select {_COLUMNS.replace('number', 'number + 1')} from seal where number = 1"
_ACTION = "insert into action (tenant, at, actor, type, subject, name"

AUDIT: Table = {
    "change a seal": ("update seal set digest = previous", "seal: rows are never changed"),
    "delete the newest seal": (
        "delete from seal where number = (select max(number) from seal)",
        "seal: rows are never changed",
    ),
    "fork the chain of seals": (_FORKED, ("must continue the newest one", "must continue the newest seal")),
    "replace a seal": (
        f"insert or replace into seal ({_COLUMNS}) select {_COLUMNS} from seal where number = 1",
        ("must continue the newest one", None),
    ),
    "truncate the seals": ("truncate seal", (None, "rows are never changed")),
    "change the actor of an action": (
        "update action set actor = 'ada'",
        "action: rows are never changed",
    ),
    "delete the recorded actions": ("delete from action", "action: rows are never changed"),
    "record an action in another person's name": (
        f"{_ACTION}) values ('default', {NOW}, 'mallory', 'add', 'limit', 'x')",
        "must be written by its actor",
    ),
    "record a purge without the range of its events": (
        f"{_ACTION}) values ('default', {NOW}, (select actor from present), 'purge', 'ledger', '1 jobs')",
        "range_of_purge",
    ),
}
