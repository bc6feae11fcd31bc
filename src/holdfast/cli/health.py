"""``holdfast health`` and ``holdfast doctor``: is all well with the work, is all well with the database."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.failures import FAILED
from holdfast.cli.output import Cell, emit, facts, line, say, table, write
from holdfast.cli.session import connect, refuse_absent, scope, store_at
from holdfast.cli.words import span
from holdfast.stores.base import Finding

# Said of a role that owns the tables: sound for one tenant, so no reason to fail unless asked to be strict.
ADVICE = frozenset({"role"})


def health(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Say how the work stands; exit 1 if somebody should look."""
    whose = scope(tenant, all_tenants)
    with connect(url, whose, schema) as client:
        found = client.run(client.verbs.health(whose))
    ok = found.verdict == "ok"
    if as_json:
        emit(found)
    else:
        age, asked = found.oldest_queued_age_s, found.oldest_gate_age_s
        facts(
            [
                ("verdict", Text(found.verdict, style="green" if ok else "bold red")),
                ("waiting", f"{found.backlog:,}"),
                ("oldest waits", None if age is None else span(max(0.0, age))),
                ("waiting kinds", line(", ".join(found.waiting_kinds))),
                ("scheduled", f"{found.scheduled:,}"),
                ("in hand", f"{found.in_progress:,}"),
                ("dead letters", f"{found.dead_letter_open:,}"),
                ("live workers", f"{found.lease_active:,}"),
                ("open gates", f"{found.gate_open:,}"),
                ("oldest asked", None if asked is None else f"{span(max(0.0, asked))} ago"),
            ]
        )
        for reason in found.reasons:
            write(f"! {reason}")
    raise typer.Exit(0 if ok else FAILED)


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Count advice as a problem.")] = False,
    url: options.Url = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Look for what is wrong with the database; exit 1 if something is."""
    with store_at(url, schema) as store:
        refuse_absent(store)
        findings = store.diagnose()
    levels = [level(finding, strict=strict) for finding in findings]
    ok = "problem" not in levels
    if as_json:
        rows = [
            {"name": f.name, "ok": f.ok, "level": how, "says": f.says, "fix": f.fix}
            for f, how in zip(findings, levels, strict=True)
        ]
        emit({"ok": ok, "findings": rows})
    else:
        table(("", "looked at", "found", "fix"), [_row(*pair) for pair in zip(findings, levels, strict=True)])
        say("All is well." if ok else "Something is wrong.")
    raise typer.Exit(0 if ok else FAILED)


def level(finding: Finding, *, strict: bool) -> str:
    if finding.ok:
        return "ok"
    return "advice" if finding.name in ADVICE and not strict else "problem"


def _row(finding: Finding, how: str) -> list[Cell]:
    mark = {"ok": Text("✓", "green"), "advice": Text("!", "yellow"), "problem": Text("✗", "bold red")}[how]
    return [mark, finding.name, line(finding.says), line(finding.fix or "", 400)]
