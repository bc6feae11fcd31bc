"""``holdfast health``: the health of the jobs. ``holdfast doctor``: checks of the database and its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.derived import derived_command
from holdfast.cli.failures import FAILED
from holdfast.cli.output import Cell, advice, emit, line, print_fields, say, span, table, write
from holdfast.cli.session import AnyTenant, NoTenant, refuse_absent, scope, store_at
from holdfast.engine.declared import Help
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import Refused
from holdfast.features.health.model import CAP, Thresholds
from holdfast.features.health.operations import HealthChecks
from holdfast.stores.requests import Finding

if TYPE_CHECKING:
    from holdfast.features.assembly import Store

# Health only warns of these.
NO_ALARM = frozenset(
    {
        *("dead_letters", "paused", "unserved_kinds", "limits_hold_many", "approvals_overdue", "schedules_late"),
        *("unserved_executors", "consumers_behind", "backlog", "clock_skew", "oldest_waits", "no_worker"),
        *("expired_leases", "long_running", "unserved_versions", "held_jobs"),
    }
)
# Findings that fail only with --strict. A role that owns the tables is fine for a single tenant.
ADVICE = frozenset({"role", "login", "pooler", "recovered", *NO_ALARM})
MARKS = {"critical": "!!", "warn": "!", "advice": "-"}


STYLES = {"ok": "green", "warn": "yellow", "critical": "bold red"}


@derived_command(AnyTenant, HealthChecks.get)
def health(
    session: AnyTenant,
    inputs: Any,
    strict: Annotated[bool, Help("Exit 1 also for a warning.")] = False,
    thresholds: Annotated[
        list[str] | None, Help("Change a threshold: oldest_warn=10m; repeatable.", "NAME=VALUE", option="--threshold")
    ] = None,
) -> None:
    """Report health: ok, warn or critical, with reasons. Exit 1 if critical."""
    when = Thresholds.of(thresholds or ())
    with session.connect() as client:
        result = HealthChecks(client).get(when=when, **inputs)
    if session.as_json:
        emit(result)
    else:
        age, approval_age = result.oldest_queued_age_s, result.oldest_approval_age_s
        print_fields(
            [
                ("verdict", Text(result.verdict, style=STYLES[result.verdict])),
                ("waiting", _count(result.backlog)),
                ("oldest waits", None if age is None else span(max(0.0, age))),
                ("waiting kinds", line(", ".join(result.waiting_kinds))),
                ("scheduled", _count(result.scheduled)),
                ("held back", _count(result.parked) if result.parked else None),
                ("running", _count(result.in_progress)),
                ("running long", f"{len(result.long_running):,}" if result.long_running else None),
                ("dead letters", _count(result.dead_letter_open)),
                ("live workers", f"{result.lease_active:,}"),
                ("open approvals", _count(result.approvals_open)),
                ("oldest approval", None if approval_age is None else f"{span(max(0.0, approval_age))} ago"),
            ]
        )
        for reason in result.reasons:
            write(f"{MARKS[reason.level]} {reason.says} [{reason.code}]")
            write(f"  {advice(reason.fix)}")
    bad = result.verdict == "critical" or (strict and result.verdict != "ok")
    raise typer.Exit(FAILED if bad else 0)


def _count(number: int) -> str:
    return f"{number:,}" + ("+" if number >= CAP else "")


def doctor(session: NoTenant, strict: Annotated[bool, Help("Treat advice as a problem.")] = False) -> None:
    """Check the database for problems. Exit 1 if there are any."""
    with store_at(session.url, session.schema) as store:
        refuse_absent(store)
        findings = store.diagnose()
        # A copy cannot tell how far its consumers are behind until it is adopted.
        if store.schema().current and not any(finding.name == "copied" for finding in findings):
            findings += _health_findings(store)
    levels = [level(finding, strict=strict) for finding in findings]
    ok = "problem" not in levels
    if session.as_json:
        rows = [
            {"name": finding.name, "ok": finding.ok, "level": level, "says": finding.says, "fix": finding.fix}
            for finding, level in zip(findings, levels, strict=True)
        ]
        emit({"ok": ok, "findings": rows})
    else:
        table(("", "check", "result", "fix"), [_row(*pair) for pair in zip(findings, levels, strict=True)])
        say("No problems found." if ok else "Problems found.")
    raise typer.Exit(0 if ok else FAILED)


def _health_findings(store: Store) -> list[Finding]:
    """The concerns of health for all tenants, or for one if the database role may read no more."""
    try:
        health = store.run(store.health.get(EVERY_TENANT))
    except Refused:
        health = store.run(store.health.get(scope(None)))
    skewed = [concern for concern in store.conditions() if concern.code == "clock_skew"]
    return [Finding(concern.code, False, concern.says, concern.fix) for concern in (*health.reasons, *skewed)]


def level(finding: Finding, *, strict: bool) -> str:
    if finding.ok:
        return "ok"
    return "advice" if finding.name in ADVICE and not strict else "problem"


def _row(finding: Finding, level: str) -> list[Cell]:
    mark = {"ok": Text("✓", "green"), "advice": Text("!", "yellow"), "problem": Text("✗", "bold red")}[level]
    return [mark, finding.name, line(finding.says), line(advice(finding.fix or ""), 400)]
