"""``holdfast jobs list, show, history, log, artifact``, ``enqueue``, ``why``."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast import config
from holdfast.app import App
from holdfast.cli import options
from holdfast.cli.options import Which, document
from holdfast.cli.output import (
    Cell,
    age,
    duration,
    emit,
    facts,
    heading,
    instant,
    line,
    moment,
    plain,
    print_document,
    say,
    span,
    state_text,
    table,
    write,
)
from holdfast.cli.session import NAME, AnyTenant, NoTenant, OneTenant, full_id, load_app, refuse_unready
from holdfast.cli.tree import Commands
from holdfast.engine.job import EVERY_TENANT, Job, Liveness
from holdfast.engine.states import State
from holdfast.engine.steps import RESERVED, Progress
from holdfast.engine.trace import plain_tags
from holdfast.errors import NotFound
from holdfast.features.agents.commands import disabled_since
from holdfast.features.attempts.model import AttemptLog
from holdfast.features.dead_letters.model import DeadLetterGroup
from holdfast.features.jobs.attempt_files import artifact_of, log_parts, read_artifact, read_log
from holdfast.features.jobs.operations import Jobs
from holdfast.features.jobs.timeline import print_attempts, print_steps, print_timeline, reason_text, short_reason
from holdfast.features.jobs.views import Story, page, story
from holdfast.features.jobs.views import why as ask
from holdfast.features.schedules.model import MadeFrom
from holdfast.kind import Options
from holdfast.stores.requests import JobFilter
from holdfast.stores.vault import Vault, shown

commands = Commands("List, show and change jobs.")

PAGE, MOST = 50, 1000
FOLLOW_EVERY = 0.5


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
    which: Which,
    limit: options.Limit = PAGE,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Next page: the id of the last job on this one.")
    ] = None,
) -> None:
    """List jobs, newest first."""
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        wanted = JobFilter(
            tenant=client.tenant,
            state=state,
            **which.wanted(now),
            before=after,
            limit=min(limit + 1, MOST),  # one more than asked tells whether there is another page
        )
        found = client.run(page(client.store, wanted))
    jobs, more = found.jobs[:limit], len(found.jobs) > limit or len(found.jobs) == MOST
    session.print_list(
        jobs,
        {
            "id": lambda job: job.id,
            **session.tenants,
            "kind": lambda job: line(job.kind),
            "state": lambda job: state_text(job.state),
            "try": lambda job: str(job.attempt),
            "age": lambda job: age(job.created_at, now),
            "why": lambda job: _why(job, found.notes.get(job.id, {})),
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
        found = Jobs(client).search(text, limit=min(limit, MOST), before=after)
    session.print_list(
        found.jobs,
        {
            "id": lambda job: job.id,
            **session.tenants,
            "kind": lambda job: line(job.kind),
            "state": lambda job: state_text(job.state),
            "age": lambda job: age(job.created_at, now),
            "why": lambda job: _why(job, {}),
        },
        none="There are no such jobs among those examined." if found.next else "There are no such jobs.",
        keep=("id", "state", "age"),
    )
    if found.next:
        say(f"There may be more: --after {found.next}")


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
        found = Jobs(client).payload_indexes()
    session.print_list(found, {"path": line}, none="No key of payloads is indexed.", keep=("path",))


def _why(job: Job, note: dict[str, Any]) -> str:
    """The error it has, or what it waits for."""
    return line(f"{job.error_code}: {job.error_message}") if job.error_code else short_reason(job, note)


@commands.add("show", "holdfast jobs show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, job: options.JobId) -> None:
    """Show a job: state, timeline, attempts, steps, payload and result."""
    found = _story(session, job)
    if session.as_json:
        emit(found)
        return
    _print_facts(found)
    heading("Timeline")
    print_timeline(found.history)
    if found.attempts:
        heading("Attempts")
        print_attempts(found.attempts)
        last = found.attempts[-1]
        if last.traceback and found.job.state is not State.SUCCEEDED:
            write(f"\n{plain(last.traceback).rstrip()}")
    if len(found.chain) > 1:
        heading("Tries, each a job of its own")
        table(("try", "job", "state", "error"), [_try(n, each, job) for n, each in enumerate(found.chain, 1)])
    if found.steps:
        heading("Steps")
        print_steps(found.steps, found.job)
    print_document("Payload", shown(found.job.payload))
    if found.result is not None and found.result.value is not None:
        print_document("Result", shown(found.result.value))
    checkpoints = {name: shown(value) for name, value in found.checkpoints.items() if name != RESERVED}
    if checkpoints:
        print_document("Checkpoints", checkpoints)
    if found.artifacts:
        heading("Artifacts")
        table(("try", "name", "where"), [[str(a.attempt), line(a.name), line(a.ref)] for a in found.artifacts])


@commands.add("history", "holdfast jobs history 01a1de74-eb8c-70f1-843b-cac5f6817387")
def history(session: AnyTenant, job: options.JobId) -> None:
    """Show the events of a job, oldest first."""
    events = _story(session, job).history
    if session.as_json:
        emit(events)
    else:
        print_timeline(events)


@commands.add(
    "log",
    "holdfast jobs log 01a1de74-eb8c-70f1-843b-cac5f6817387",
    "holdfast jobs log 01a1de74 --attempt 2",
    "holdfast jobs log 01a1de74 --follow",
)
def log(
    session: AnyTenant,
    job: options.JobId,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="The number of the attempt. Default: the last.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="BYTES", min=0, help="Print only the last bytes of the log.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the attempt has ended.")
    ] = False,
) -> None:
    """Print the log of an attempt: lines of ctx.log, or the output of a command job."""
    with session.connect() as client:
        vault = Vault.of(config.artifact_place(client.store.url), config.key_text())
        job_id = full_id(client, job)

        def read(number: int | None, offset: int | None, last: int | None) -> AttemptLog:
            return read_log(vault, client.run(log_parts(client.store, job_id, number, client.tenant)), offset, last)

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
                time.sleep(FOLLOW_EVERY)
            number = piece.attempt if piece.attempt else attempt
            piece = read(number, piece.next, None)


@commands.add("artifact", "holdfast jobs artifact 01a1de74-eb8c-70f1-843b-cac5f6817387 report.csv --output report.csv")
def artifact(
    session: AnyTenant,
    job: options.JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the artifact.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="The number of the attempt. Default: the last.")
    ] = None,
) -> None:
    """Write the contents of an artifact to a file or to stdout."""
    with session.connect() as client:
        vault = Vault.of(config.artifact_place(client.store.url), config.key_text())
        found = client.run(artifact_of(client.store, full_id(client, job), name, attempt, client.tenant))
        data = read_artifact(vault, found)
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    output.write_bytes(data)
    session.answer({"file": str(output), "size": len(data)}, f"Wrote {len(data):,} bytes to {output}.")


def _story(session: AnyTenant, job_id: str) -> Story:
    tenant = session.scope
    with session.connect() as client:
        found = client.run(story(client.store, full_id(client, job_id), tenant))
    if found is None:
        where = "any tenant" if tenant == EVERY_TENANT else f"tenant {tenant}"
        raise NotFound(f"no job {job_id} in {where}", fix="If it belongs to another tenant, try --all-tenants.")
    return found


def _try(n: int, each: Job, shown: str) -> list[Cell]:
    here = " (this one)" if each.id == shown else ""
    error = line(f"{each.error_code}: {each.error_message}") if each.error_code else ""
    return [str(n), f"{each.id}{here}", state_text(each.state), error]


def _said(progress: Progress | None) -> str | None:
    """``42 %: reading page 7``"""
    if progress is None:
        return None
    share = None if progress.fraction is None else f"{progress.fraction:.0%}".replace("%", " %")
    told = ": ".join(part for part in (share, progress.message) if part)
    return f"{told} (attempt {progress.attempt})" if told else None


def _reports(seen: Liveness | None) -> str | None:
    """``12 in this attempt, the last 2027-01-31 03:00:00.000``"""
    if seen is None or seen.reported_at is None:
        return None
    return f"{seen.reports:,} in attempt {seen.attempt}, the last {moment(seen.reported_at)}"


def _heartbeats(seen: Liveness | None) -> str | None:
    """``40 of this lease, the last 2027-01-31 03:00:00.000``"""
    if seen is None or seen.renewed_at is None or not seen.renewals:
        return None
    return f"{seen.renewals:,} of the lease of {seen.worker}, the last {moment(seen.renewed_at)}"


def _made_from(made: MadeFrom | None) -> str | None:
    """``schedule nightly, for 2027-01-31 03:00:00.000; template monthly, version 3``"""
    if made is None:
        return None
    schedule = None if made.due_at is None else f"schedule {made.schedule}, for {moment(made.due_at)}"
    template = None if made.template is None else f"template {made.template}, version {made.template_version}"
    return "; ".join(part for part in (schedule, template) if part)


def _group(group: DeadLetterGroup | None) -> str | None:
    """``3f2a9c0b1d4e5f60: 17 open, 20 times since 2027-01-31 03:00:00.000``"""
    if group is None:
        return None
    noted = f"; {group.noted_by}: {group.note}" if group.note else ""
    return f"{group.fingerprint}: {group.open:,} open, {group.times:,} times since {moment(group.first_at)}{noted}"


def _running(found: Story) -> str | None:
    """``step charge since 2027-01-31 03:00:00.000``"""
    running = [f"step {step.name} since {moment(step.started_at)}" for step in found.steps if step.running]
    return ", ".join(running) if running and found.job.state is State.IN_PROGRESS else None


def _retries(job: Job) -> str:
    """``2 of 9 used; all of them span up to 5 h 31 m``"""
    if job.max_attempts == 1:
        return "none"
    return f"{job.retries} of {job.max_attempts - 1} used; all of them span up to {span(job.retry_span)}"


def _print_facts(found: Story) -> None:
    job, call = found.job, found.waits_in
    endless = call is not None and call.until is None

    def when(at: datetime | None) -> str | None:
        return None if at is None else moment(at)

    write(f"{job.kind}  {job.id}")
    facts(
        [
            ("state", state_text(job.state)),
            ("why", reason_text(found)),
            ("error", f"{job.error_code}: {job.error_message}" if job.error_code else None),
            ("running", _running(found)),
            ("progress", _said(Progress.saved(found.checkpoints))),
            ("reports", _reports(found.liveness)),
            ("heartbeats", _heartbeats(found.liveness)),
            ("tenant", job.tenant),
            ("queue", job.queue),
            ("priority", str(job.priority)),
            ("attempts", f"{job.attempt} begun, {job.crashes} lost workers"),
            ("retries", _retries(job)),
            ("enqueued", f"{moment(job.created_at)} by {job.enqueued_by} ({job.source_system})"),
            ("made from", _made_from(found.made_from)),
            ("not before", when(job.run_at)),
            ("due", None if endless else when(job.due_at)),
            ("deadline", when(job.deadline_at)),
            ("started", when(job.started_at)),
            ("finished", when(job.finished_at)),
            ("updated", when(job.updated_at)),
            ("last error", when(job.last_error_at)),
            ("key", job.idempotency_key),
            ("tags", ", ".join(plain_tags(job.tags))),
            ("trace", job.trace.traceparent),
            ("executor", job.executor),
            ("agent", job.agent),
            ("agent disabled", disabled_since(found.agent)),
            ("correlation", job.correlation_id),
            ("causation", job.causation_id),
            ("parent", job.parent_id),
            ("workflow", job.workflow_id),
            ("reference", job.external_ref),
            ("source", found.references.source_ref),
            ("target", found.references.target_ref),
            ("payload at", found.references.payload_ref),
            ("result at", None if found.result is None else found.result.ref),
            ("retry of", job.retry_of),
            ("group", _group(found.group)),
            ("redriven as", next((each.new_id for each in found.remade if each.job_id == job.id), None)),
            ("in place of", next((each.job_id for each in found.remade if each.new_id == job.id), None)),
            ("depth", None if job.depth is None else f"{job.depth} subscriptions behind it"),
        ]
    )


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
        typer.Option("--app", metavar="MODULE:APP", help="App to check the payload against the handler's signature."),
    ] = None,
) -> None:
    """Enqueue one job and print its id."""
    chosen: Options = {"tenant": session.scope}
    if queue is not None:
        chosen["queue"] = queue
    if priority is not None:
        chosen["priority"] = priority
    if delay is not None:
        chosen["delay"] = duration(delay, "delay")
    if at is not None:
        chosen["run_at"] = instant(at, "--at")
    if key is not None:
        chosen["key"] = key
    if agent is not None:
        chosen["agent"] = agent
    if executor is not None:
        chosen["executor"] = executor
    if tag:
        chosen["tags"] = tag
    if dedupe is not None:
        chosen["dedupe"] = dedupe.value
    if source_ref is not None:
        chosen["source_ref"] = source_ref
    if target_ref is not None:
        chosen["target_ref"] = target_ref
    if payload_ref is not None:
        chosen["payload_ref"] = payload_ref
    value = document(payload)
    with closing(_app(session, app, kind)) as target:
        handle = target.enqueue(kind, value, **chosen)
    if session.as_json:
        emit({"id": handle.id, "tenant": handle.tenant, "created": handle.created, "reason": handle.reason})
        return
    write(handle.id)
    if not handle.created:
        say(f"No new job: this one stands for it ({handle.reason}).")


def _app(session: OneTenant, name: str | None, kind: str) -> App:
    if name is None:
        app = App(config.database_url(session.url), name=NAME, schema=session.schema)
    else:
        app = load_app(name, session.url)
        if kind not in app._kinds:
            known = ", ".join(sorted(app._kinds)) or "none"
            raise NotFound(f"{name} declares no job {kind!r}", code="unknown_kind", fix=f"Declared jobs: {known}.")
    if not app._store.embedded:  # an embedded one is made, or brought up to date, as a program's would be
        refuse_unready(app._store)
    return app


def why(session: AnyTenant, job: options.JobId) -> None:
    """Explain why a job is not running: every reason that applies, and what would change it."""
    whose = session.scope
    with session.connect() as client:
        found = client.run(ask(client.store, full_id(client, job), whose))
    if session.as_json:
        emit({"job": found.job.id, "state": found.job.state, "reasons": found.reasons})
        return
    write(Text.assemble(f"{line(found.job.kind)}  {found.job.id}  ", state_text(found.job.state)))
    for reason in found.reasons:
        write(Text.assemble(("- ", "dim"), plain(reason.says)))
        if reason.change is not None:
            write(Text.assemble(("  → ", "dim"), plain(reason.change)))
