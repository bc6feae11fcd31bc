"""``holdfast health`` and ``holdfast doctor``: is all well with the work, is all well with the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from holdfast.cli.failures import FAILED
from holdfast.cli.output import Cell, emit, facts, line, say, span, table, write
from holdfast.cli.session import AnyTenant, NoTenant, refuse_absent, scope, store_at
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import Refused
from holdfast.features.health.model import CAP, Thresholds, with_concerns
from holdfast.stores.requests import Finding

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

# What health would only warn of.
NO_ALARM = frozenset(
    {
        *("dead_letters", "paused", "unserved_kinds", "limits_hold_many", "approvals_overdue", "schedules_late"),
        *("unserved_executors", "consumers_behind", "backlog", "clock_skew", "oldest_waits", "no_worker"),
    }
)
# Said of a role that owns the tables: sound for one tenant, so no reason to fail unless asked to be strict.
ADVICE = frozenset({"role", "login", "pooler", *NO_ALARM})
MARKS = {"critical": "!!", "warn": "!", "advice": "-"}


STYLES = {"ok": "green", "warn": "yellow", "critical": "bold red"}


def health(
    session: AnyTenant,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 also for a warning.")] = False,
    thresholds: Annotated[
        list[str] | None,
        typer.Option("--threshold", metavar="NAME=VALUE", help="Change a threshold: oldest_warn=10m; repeatable."),
    ] = None,
) -> None:
    """Report health: ok, warn or critical, with reasons. Exit 1 if critical."""
    whose, when = session.scope, Thresholds.of(thresholds or ())
    with session.connect() as client:
        found = with_concerns(client.run(client.store.health.get(whose, when)), client.store.conditions(when))
    if session.as_json:
        emit(found)
    else:
        age, asked = found.oldest_queued_age_s, found.oldest_approval_age_s
        facts(
            [
                ("verdict", Text(found.verdict, style=STYLES[found.verdict])),
                ("waiting", _count(found.backlog)),
                ("oldest waits", None if age is None else span(max(0.0, age))),
                ("waiting kinds", line(", ".join(found.waiting_kinds))),
                ("scheduled", _count(found.scheduled)),
                ("held back", _count(found.parked) if found.parked else None),
                ("in hand", _count(found.in_progress)),
                ("dead letters", _count(found.dead_letter_open)),
                ("live workers", f"{found.lease_active:,}"),
                ("open approvals", _count(found.approvals_open)),
                ("oldest asked", None if asked is None else f"{span(max(0.0, asked))} ago"),
            ]
        )
        for reason in found.reasons:
            write(f"{MARKS[reason.level]} {reason.says} [{reason.code}]")
            write(f"  {reason.fix}")
    bad = found.verdict == "critical" or (strict and found.verdict != "ok")
    raise typer.Exit(FAILED if bad else 0)


def _count(number: int) -> str:
    return f"{number:,}" + ("+" if number >= CAP else "")


def doctor(
    session: NoTenant, strict: Annotated[bool, typer.Option("--strict", help="Treat advice as a problem.")] = False
) -> None:
    """Check the database for problems. Exit 1 if there are any."""
    with store_at(session.url, session.schema) as store:
        refuse_absent(store)
        findings = store.diagnose()
        if store.schema().current:
            findings += _of_the_work(store)
    levels = [level(finding, strict=strict) for finding in findings]
    ok = "problem" not in levels
    if session.as_json:
        rows = [
            {"name": f.name, "ok": f.ok, "level": how, "says": f.says, "fix": f.fix}
            for f, how in zip(findings, levels, strict=True)
        ]
        emit({"ok": ok, "findings": rows})
    else:
        table(("", "looked at", "found", "fix"), [_row(*pair) for pair in zip(findings, levels, strict=True)])
        say("All is well." if ok else "Something is wrong.")
    raise typer.Exit(0 if ok else FAILED)


def _of_the_work(store: Store) -> list[Finding]:
    """What health has to say of the jobs of all tenants, or of one where the role may not look at more."""
    try:
        found = store.run(store.health.get(EVERY_TENANT))
    except Refused:
        found = store.run(store.health.get(scope(None)))
    skewed = [concern for concern in store.conditions() if concern.code == "clock_skew"]
    return [Finding(each.code, False, each.says, each.fix) for each in (*found.reasons, *skewed)]


def level(finding: Finding, *, strict: bool) -> str:
    if finding.ok:
        return "ok"
    return "advice" if finding.name in ADVICE and not strict else "problem"


def _row(finding: Finding, how: str) -> list[Cell]:
    mark = {"ok": Text("✓", "green"), "advice": Text("!", "yellow"), "problem": Text("✗", "bold red")}[how]
    return [mark, finding.name, line(finding.says), line(finding.fix or "", 400)]
