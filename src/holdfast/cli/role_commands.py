"""``holdfast roles``."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.output import Cell, emit, heading, line, say, table
from holdfast.cli.session import NoTenant, store_at
from holdfast.stores.postgres.roles import MAY, functions


def roles(
    session: NoTenant,
    grants: Annotated[bool, typer.Option("--functions", help="List the functions that each role may call.")] = False,
) -> None:
    """List the database roles, what each may do, and which logins have them.

    A SQLite file has no roles: who can open it can do everything.
    """
    with store_at(session.url, session.schema) as store:
        embedded, logins = store.embedded, store.logins()
    if session.as_json:
        listed = [{"role": role, "may": may, "functions": sorted(functions()[role])} for role, may in MAY.items()]
        emit({"roles": [] if embedded else listed, "logins": logins})
        return
    if embedded:
        say("SQLite has no roles: who can open the file can do everything.")
        return
    rows: list[list[Cell]] = [
        [role, may, ", ".join(login.name for login in logins if role in login.roles)] for role, may in MAY.items()
    ]
    table(("role", "may", "logins"), rows, keep=("role",))
    if grants:
        for role in MAY:
            heading(role)
            say(line(", ".join(sorted(functions()[role])), 10_000))
    for login in logins:
        if login.tenant is not None:
            say(f"{line(login.name)} is pinned to tenant {line(login.tenant)}.")
        if login.bypasses or login.owns:
            problem = "bypasses row-level security" if login.bypasses else "owns the tables"
            say(f"{line(login.name)} {problem}: use it for migrations only.")
    say("To give a login a role: grant holdfast_producer to LOGIN")
