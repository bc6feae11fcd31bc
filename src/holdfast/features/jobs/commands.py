"""``holdfast jobs list | search | show | history | log | artifact | index | indexes``, ``enqueue`` and ``why``."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.text import Text

from holdfast import config
from holdfast.app import App
from holdfast.cli import options
from holdfast.cli.options import JobFilterOptions, document
from holdfast.cli.output import (
    advice,
    age,
    duration,
    emit,
    heading,
    instant,
    line,
    plain,
    print_document,
    print_fields,
    say,
    state_text,
    table,
    write,
)
from holdfast.cli.session import NAME, AnyTenant, NoTenant, OneTenant, full_id, load_app, refuse_unready
from holdfast.cli.tree import Commands
from holdfast.engine.job import DEFAULT_QUEUE, EVERY_TENANT, Job
from holdfast.engine.states import HELD, State
from holdfast.engine.steps import RESERVED
from holdfast.errors import NotFound
from holdfast.features.agents.commands import disabled_since
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.jobs.attempt_files import artifact_of, log_parts, read_artifact, read_log
from holdfast.features.jobs.operations import Jobs
from holdfast.features.jobs.search import page
from holdfast.features.jobs.timeline import (
    print_attempts,
    print_chain,
    print_facts,
    print_steps,
    print_timeline,
    short_reason,
)
from holdfast.features.jobs.views import Story, story
from holdfast.features.jobs.views import why as explain
from holdfast.kind import Options
from holdfast.stores.private_files import open_private
from holdfast.stores.requests import JobFilter
from holdfast.stores.vault import Vault, shown

commands = Commands("List, show and change jobs.")

PAGE, MAX_PAGE = 50, 1000
FOLLOW_INTERVAL = 0.5
"""Seconds between two reads of a log that ``--follow`` prints."""

AttemptNumber = Annotated[
    int | None, typer.Option("--attempt", metavar="N", min=1, help="The number of the attempt. Default: the last.")
]


@commands.add(
    "list",
    "holdfast jobs list --state dead_letter --since 1d",
    "holdfast jobs list --json --limit 1000",
)
def list_jobs(
    session: AnyTenant,
    state: Annotated[
        State | None, typer.Option("--state", metavar="STATE", help=f"Only jobs in this state: {', '.join(State)}.")
    ] = None,
    *,
    which: JobFilterOptions,
    limit: options.Limit = PAGE,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Next page: the id of the last job on this one.")
    ] = None,
) -> None:
    """List jobs, newest first."""
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        job_filter = JobFilter(
            tenant=client.tenant,
            state=state,
            **which.wanted(now),
            before=after,
            limit=min(limit + 1, MAX_PAGE),  # one more than requested, to know whether there is another page
        )
        result = client.run(page(client.store, job_filter))
    jobs, more = result.jobs[:limit], len(result.jobs) > limit or len(result.jobs) == MAX_PAGE
    session.print_list(
        jobs,
        {
            "id": lambda job: job.id,
            **session.tenants,
            "kind": lambda job: line(job.kind),
            "state": lambda job: state_text(job.state),
            "try": lambda job: str(job.attempt),
            "age": lambda job: age(job.created_at, now),
            "why": lambda job: _why(job, result.notes.get(job.id, {})),
        },
        none="There are no such jobs.",
        keep=("id", "state", "try", "age"),
    )
    if more:
        say(f"There are more: --after {jobs[-1].id}")


@commands.add(
    "search",
    "holdfast jobs search 'payload.order_id:7'",
    "holdfast jobs search 'kind:pay state:dead_letter payload.customer.id:c-9 declined'",
)
def search_jobs(
    session: AnyTenant,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Qualifiers, keys of the payload, words of the error.")],
    *,
    limit: options.Limit = PAGE,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Continue: the id that the last search printed.")
    ] = None,
) -> None:
    """Search jobs by qualifiers, keys of the payload and words of the error, newest first.

    Keys without an index are compared with 2,000 jobs per search. Restricted and sealed payloads are never found.
    """
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        result = Jobs(client).search(text, limit=min(limit, MAX_PAGE), before=after)
    session.print_list(
        result.jobs,
        {
            "id": lambda job: job.id,
            **session.tenants,
            "kind": lambda job: line(job.kind),
            "state": lambda job: state_text(job.state),
            "age": lambda job: age(job.created_at, now),
            "why": lambda job: _why(job, {}),
        },
        none="There are no such jobs among those examined." if result.next else "There are no such jobs.",
        keep=("id", "state", "age"),
    )
    if result.next:
        say(f"There may be more: --after {result.next}")


@commands.add("index", "holdfast jobs index payload.order_id", "holdfast jobs index payload.order_id --remove")
def index(
    session: NoTenant,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A key of the payload: payload.customer.id.")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove the index instead.")] = False,
) -> None:
    """Index a key of payloads for searching. Use the login that owns the tables; jobs are processed meanwhile."""
    with session.connect() as client:
        jobs = Jobs(client)
        if remove:
            jobs.remove_payload_index(path)
        else:
            jobs.add_payload_index(path)
    session.answer({"path": path, "indexed": not remove}, f"{path} is {'no longer ' if remove else ''}indexed.")


@commands.add("indexes", "holdfast jobs indexes")
def indexes(session: NoTenant) -> None:
    """List the indexed keys of payloads."""
    with session.connect() as client:
        paths = Jobs(client).payload_indexes()
    session.print_list(paths, {"path": line}, none="No key of payloads is indexed.", keep=("path",))


def _why(job: Job, note: dict[str, Any]) -> str:
    """The error of a job, or what it waits for. A running job has the error of an earlier attempt."""
    failed = job.error_code is not None and job.state not in HELD
    return line(f"{job.error_code}: {job.error_message}") if failed else short_reason(job, note)


@commands.add("show", "holdfast jobs show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, job: options.JobId) -> None:
    """Show a job: state, timeline, attempts, steps, payload and result."""
    details = _story(session, job)
    if session.as_json:
        emit(details)
        return
    print_facts(details, disabled_since(details.agent))
    heading("Timeline")
    print_timeline(details.history, details.votes)
    if details.attempts:
        heading("Attempts")
        print_attempts(details.attempts, lost=details.lease_expired_at is not None)
        last = details.attempts[-1]
        if last.traceback and details.job.state is not State.SUCCEEDED:
            write(f"\n{plain(last.traceback).rstrip()}")
    if len(details.chain) > 1:
        heading("Retries as new jobs")
        print_chain(details.chain, job)
    if details.steps:
        heading("Steps")
        print_steps(details.steps, details.job, lost=details.lease_expired_at is not None)
    print_document("Payload", shown(details.job.payload))
    if details.result is not None and details.result.value is not None:
        print_document("Result", shown(details.result.value))
    checkpoints = {name: shown(value) for name, value in details.checkpoints.items() if name != RESERVED}
    if checkpoints:
        heading("Checkpoints")
        print_fields(
            [(line(name), line(json.dumps(value, ensure_ascii=False), 100)) for name, value in checkpoints.items()]
        )
    if details.artifacts:
        heading("Artifacts")
        table(("try", "name", "where"), [[str(a.attempt), line(a.name), line(a.ref)] for a in details.artifacts])


@commands.add("history", "holdfast jobs history 01a1de74-eb8c-70f1-843b-cac5f6817387")
def history(session: AnyTenant, job: options.JobId) -> None:
    """Show the events of a job, oldest first."""
    details = _story(session, job)
    events = details.history
    if session.as_json:
        emit(events)
    else:
        print_timeline(events, details.votes)


@commands.add(
    "log",
    "holdfast jobs log 01a1de74-eb8c-70f1-843b-cac5f6817387",
    "holdfast jobs log 01a1de74 --attempt 2",
    "holdfast jobs log 01a1de74 --follow",
)
def log(
    session: AnyTenant,
    job: options.JobId,
    attempt: AttemptNumber = None,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="BYTES", min=0, help="Print only the last bytes of the log.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the attempt has ended.")
    ] = False,
) -> None:
    """Print the log of an attempt: lines of ctx.log, or the output of a command job."""
    with session.connect() as client:
        vault = Vault.of(config.artifact_location(client.store.url), config.key_text())
        job_id = full_id(client, job)

        def read(number: int | None, offset: int | None, tail: int | None) -> AttemptLog:
            return read_log(vault, client.run(log_parts(client.store, job_id, number, client.tenant)), offset, tail)

        piece = read(attempt, None, tail)
        if session.as_json and not follow:
            emit(piece)
            return
        while True:
            sys.stdout.write(plain(piece.text))
            sys.stdout.flush()
            if not piece.more and (piece.ended or not follow):
                return
            if not piece.more:
                time.sleep(FOLLOW_INTERVAL)
            piece = read(piece.attempt or attempt, piece.next, None)


@commands.add("artifact", "holdfast jobs artifact 01a1de74-eb8c-70f1-843b-cac5f6817387 report.csv --output report.csv")
def artifact(
    session: AnyTenant,
    job: options.JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the artifact.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    attempt: AttemptNumber = None,
) -> None:
    """Write the contents of an artifact to a file or to stdout."""
    with session.connect() as client:
        vault = Vault.of(config.artifact_location(client.store.url), config.key_text())
        location = client.run(artifact_of(client.store, full_id(client, job), name, attempt, client.tenant))
        data = read_artifact(vault, location)
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    with open_private(output) as file:
        file.write(data)
    session.answer({"file": str(output), "size": len(data)}, f"Wrote {len(data):,} bytes to {output}.")


def _story(session: AnyTenant, job_id: str) -> Story:
    tenant = session.scope
    with session.connect() as client:
        details = client.run(story(client.store, full_id(client, job_id), tenant))
    if details is None:
        where = "any tenant" if tenant == EVERY_TENANT else f"tenant {tenant}"
        raise NotFound(f"no job {job_id} in {where}", fix="If it belongs to another tenant, try --all-tenants.")
    return details


class Dedupe(StrEnum):
    SKIP = "skip"
    COALESCE = "coalesce"


def enqueue(
    session: OneTenant,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The job's kind.")],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="JSON, @file, or - for stdin.")] = "{}",
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Name of the queue.")] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", help="Priority; higher runs first.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="SPAN", help="Delay before the job may start: 90s, 5m, 2h.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Earliest start time: 2027-01-31T09:00Z.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Idempotency key: one job per key.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="The agent that owns the job.")] = None,
    executor: Annotated[
        str | None, typer.Option("--executor", metavar="LABEL", help="Label of the workers that may run the job.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="A tag; repeatable.")] = None,
    dedupe: Annotated[
        Dedupe | None,
        typer.Option(
            "--dedupe",
            metavar="HOW",
            help="Deduplicate by content: skip if an equal job is active, coalesce if one is waiting.",
        ),
    ] = None,
    source_ref: Annotated[str | None, typer.Option("--source-ref", metavar="TEXT", help="URI of the input.")] = None,
    target_ref: Annotated[str | None, typer.Option("--target-ref", metavar="TEXT", help="URI of the output.")] = None,
    payload_ref: Annotated[
        str | None, typer.Option("--payload-ref", metavar="TEXT", help="URI of the data, if it is not in the payload.")
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:APP",
            help="App that declares the kind: checks the payload, and sets queue, priority, retry policy and tags.",
        ),
    ] = None,
) -> None:
    """Enqueue one job and print its id."""
    given = {
        "tenant": session.scope,
        "queue": queue,
        "priority": priority,
        "delay": None if delay is None else duration(delay, "delay"),
        "run_at": None if at is None else instant(at, "--at"),
        "key": key,
        "agent": agent,
        "executor": executor,
        "tags": tag or None,
        "dedupe": None if dedupe is None else dedupe.value,
        "source_ref": source_ref,
        "target_ref": target_ref,
        "payload_ref": payload_ref,
    }
    value = document(payload)
    with closing(_app(session, app, kind)) as target:
        handle = target.enqueue(kind, value, **_options(given))
        declared = kind in target._all_kinds
    if session.as_json:
        emit({"id": handle.id, "tenant": handle.tenant, "created": handle.created, "reason": handle.reason})
        return
    write(handle.id)
    if handle.created and not declared:
        say(f"Stored without --app: queue {queue or DEFAULT_QUEUE}, payload not checked against a handler.")
    if not handle.created:
        say(f"No new job: this one stands for it ({handle.reason}).")


def _options(given: dict[str, Any]) -> Options:
    return cast(Options, {name: value for name, value in given.items() if value is not None})


def _app(session: OneTenant, name: str | None, kind: str) -> App:
    if name is None:
        app = App(config.database_url(session.url), name=NAME, schema=session.schema)
    else:
        app = load_app(name, session.url)
        if kind not in app._kinds:
            known = ", ".join(sorted(app._kinds)) or "none"
            raise NotFound(f"{name} declares no job {kind!r}", code="unknown_kind", fix=f"Declared jobs: {known}.")
    if not app._store.embedded:  # opening an embedded store creates or migrates it
        refuse_unready(app._store)
    return app


def why(session: AnyTenant, job: options.JobId) -> None:
    """Explain why a job is not running: every reason that applies, and what would change it."""
    tenant = session.scope
    with session.connect() as client:
        answer = client.run(explain(client.store, full_id(client, job), tenant))
    if session.as_json:
        emit({"job": answer.job.id, "state": answer.job.state, "reasons": answer.reasons})
        return
    write(Text.assemble(f"{line(answer.job.kind)}  {answer.job.id}  ", state_text(answer.job.state)))
    for reason in answer.reasons:
        # A reason that consists of several facts has one line for each.
        text = plain(reason.says).replace("; ", "\n  ") if reason.code == "running" else plain(reason.says)
        write(Text.assemble(("- ", "dim"), text))
        if reason.change is not None:
            write(Text.assemble(("  → ", "dim"), plain(advice(reason.change))))
