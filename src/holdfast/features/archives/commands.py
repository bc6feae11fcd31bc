"""``holdfast archives list | run | verify | show``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from holdfast import config
from holdfast.cli import options
from holdfast.cli.output import Cell, emit, moment, say, table, write
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.features.archives.operations import Archives
from holdfast.stores.artifacts import open_artifacts

commands = Commands("Archive finished jobs, verify and read archives.")


@contextmanager
def _archives(session: AnyTenant) -> Iterator[Archives]:
    with session.connect() as client:
        yield Archives(client, open_artifacts(config.artifact_location(config.database_url(session.url))))


@commands.add("list", "holdfast archives list --all-tenants")
def list_archives(session: AnyTenant, limit: options.Limit = 50) -> None:
    """List the archives, those with the newest jobs first."""
    with _archives(session) as archives:
        found = archives.list(limit=limit)
    if session.as_json:
        emit(found)
        return
    if not found:
        say("No archives. A policy makes them: holdfast retention set --purge-after 52w --archive")
        return
    rows: list[list[Cell]] = [
        [each.id, each.tenant, f"{each.jobs:,}", f"{each.bytes:,}", moment(each.created_at), f"{each.seal or ''}"]
        for each in found
    ]
    table(["id", "tenant", "jobs", "bytes", "recorded", "seal"], rows, keep=("id", "jobs"))


@commands.add("run", "holdfast archives run --all-tenants")
def run(
    session: AnyTenant,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=100_000_000, help="Stop after about this many jobs.")
    ] = 100_000,
) -> None:
    """Archive what a retention policy wants archived and is due. Workers do it, too."""
    with _archives(session) as archives:
        done = archives.run(limit=limit)
    session.answer(done, f"{done.jobs:,} jobs archived, in {done.archives:,} files.")


@commands.add("verify", "holdfast archives verify ID", "holdfast archives verify --all --all-tenants")
def verify(
    session: AnyTenant,
    archive: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of the archive.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Verify all archives.")] = False,
) -> None:
    """Read archives and check their hashes, jobs, files and seals. Exit code 1 if something is wrong."""
    if (archive is None) != every:
        raise typer.BadParameter("give the id of an archive, or --all")
    with _archives(session) as archives:
        checks = [archives.verify(archive)] if archive is not None else []
        page = archives.list(limit=200) if every else []
        while page:
            checks += [archives.verify(each.id) for each in page]
            page = archives.list(limit=200, before=page[-1].id)
    if session.as_json:
        emit([{"ok": each.ok, **dataclasses.asdict(each)} for each in checks])
    for check in () if session.as_json else checks:
        write(f"{check.archive}  {'ok' if check.ok else 'damaged'}  {check.jobs:,} jobs")
        for problem in check.problems:
            write(f"    {problem}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


@commands.add("show", "holdfast archives show JOB")
def show(session: AnyTenant, job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]) -> None:
    """Print an archived job as JSON: its rows by table, as they were stored; also after it was purged."""
    with _archives(session) as archives:
        emit(archives.read(job))
