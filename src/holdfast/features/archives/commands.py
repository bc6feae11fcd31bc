"""``holdfast archives``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from holdfast.cli.derived import derive
from holdfast.cli.output import emit, moment, print_fields, write
from holdfast.cli.session import WithArtifacts
from holdfast.cli.tree import Commands
from holdfast.engine.declared import Help
from holdfast.features.archives.model import Archive, ArchiveRun, Document
from holdfast.features.archives.operations import Archives

commands = Commands("Archive finished jobs, verify and read archives.")


@derive(commands, "list", WithArtifacts, Archives.list, "holdfast archives list --all-tenants")
def list_archives(session: WithArtifacts, result: list[Archive]) -> None:
    session.print_list(
        result,
        {
            "id": lambda archive: archive.id,
            "tenant": lambda archive: archive.tenant,
            "jobs": lambda archive: f"{archive.jobs:,}",
            "bytes": lambda archive: f"{archive.bytes:,}",
            "recorded": lambda archive: moment(archive.created_at),
            "seal": lambda archive: f"{archive.seal or ''}",
        },
        none="No archives. A policy makes them: holdfast retention set --purge-after 52w --archive",
        keep=("id", "jobs"),
    )


@derive(commands, "run", WithArtifacts, Archives.run, "holdfast archives run --all-tenants")
def run(session: WithArtifacts, result: ArchiveRun) -> None:
    session.answer(result, f"{result.jobs:,} jobs archived, in {result.archives:,} files.")


@derive(commands, "show", WithArtifacts, Archives.get, "holdfast archives show ID")
def show(session: WithArtifacts, result: Archive) -> None:
    if session.as_json:
        emit(result)
        return
    write(result.id)
    print_fields(
        [
            ("tenant", result.tenant),
            ("jobs", f"{result.jobs:,}"),
            ("bytes", f"{result.bytes:,}"),
            ("file", result.ref),
            ("first job", result.first_job),
            ("last job", result.last_job),
            ("recorded", f"{moment(result.created_at)} by {result.created_by}"),
            ("seal", None if result.seal is None else str(result.seal)),
        ]
    )


@commands.add("verify", "holdfast archives verify ID", "holdfast archives verify --all --all-tenants")
def verify(
    session: WithArtifacts,
    archive: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of the archive.")] = None,
    every: Annotated[bool, Help("Verify all archives.", option="--all")] = False,
) -> None:
    """Read archives and check their hashes, jobs, files and seals. Exit code 1 if something is wrong."""
    if (archive is None) != every:
        raise typer.BadParameter("give the id of an archive, or --all")
    with session.namespace(Archives) as archives:
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


@derive(commands, "read", WithArtifacts, Archives.read, "holdfast archives read JOB")
def read(session: WithArtifacts, result: Document) -> None:
    emit(result)
