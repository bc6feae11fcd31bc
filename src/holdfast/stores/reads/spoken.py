"""What a job has said, as readers see it: not where its kind is restricted, unless nothing was kept of it anyway."""

from __future__ import annotations

from holdfast.features.payloads.model import HIDDEN, WITHHELD

_KEPT = "'" + WITHHELD.replace("'", "''") + "'"


def spoken(message: str, job: str) -> str:
    """``message`` is the column, ``job`` what has the tenant and the kind. Where nothing was said, no rule is read."""
    return (
        f"case when {message} <> {_KEPT} and exists (select 1 from {{payload_rule}} u"
        f" where u.classification = 'restricted' and u.tenant in ({job}.tenant, '*') and u.kind in ({job}.kind, '*'))"
        f" then '{HIDDEN}' else {message} end"
    )
