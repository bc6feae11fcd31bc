"""The options that many commands share, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The database: sqlite:///jobs.db or postgresql://… (or HOLDFAST_URL)."),
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="NAME", help="The tenant (or HOLDFAST_TENANT; else 'default')."),
]
AllTenants = Annotated[bool, typer.Option("--all-tenants", help="Every tenant, where the role may.")]
Schema = Annotated[str, typer.Option("--schema", metavar="NAME", help="The schema on PostgreSQL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else on stdout.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many at most.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the ledger.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job's id, in full.")]
JobIds = Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of jobs, in full.")]

SCHEMA = "holdfast"


def examples(*commands: str) -> str:
    """An epilog; the mark at its beginning keeps its lines as they are."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def listed(text: str | None) -> tuple[str, ...]:
    """``a,b`` as its parts."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
