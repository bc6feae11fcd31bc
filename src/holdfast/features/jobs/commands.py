"""``holdfast jobs list | count | search | show | history | log | artifact | index | indexes``; ``enqueue``, ``why``."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer
from rich.text import Text

from holdfast import config
from holdfast.app import App
from holdfast.app.internals import kinds_of, session_of
from holdfast.cli.derived import derive, derived_command
from holdfast.cli.options import JobFilterOptions, JobState, document
from holdfast.cli.output import (
    advice,
    age,
    emit,
    heading,
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
from holdfast.engine.declared import Help
from holdfast.engine.job import DEFAULT_QUEUE, Job
from holdfast.engine.job_options import EnqueueOptions
from holdfast.engine.operation import Program, operation
from holdfast.engine.states import HELD, State
from holdfast.engine.steps import RESERVED
from holdfast.errors import InvalidSetting, NotFound
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
from holdfast.stores.host_files import open_private
from holdfast.stores.job_filters import BY_NAME
from holdfast.stores.requests import JobFilter
from holdfast.stores.vault import Vault, shown

commands = Commands("List, show and change jobs.")

MAX_PAGE = 1000
FOLLOW_INTERVAL = 0.5
"""Seconds between two reads of a log that ``--follow`` prints."""


@derive(
    commands,
    "list",
    AnyTenant,
    Jobs.list,
    "holdfast jobs list --state dead_letter --since 1d",
    "holdfast jobs list --json --limit 1000",
    without=tuple(BY_NAME),
)
def list_jobs(session: AnyTenant, inputs: dict[str, Any], state: JobState = None, *, which: JobFilterOptions) -> None:
    limit = inputs["limit"]
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        job_filter = JobFilter(
            tenant=client.tenant,
            state=state,
            **which.wanted(now),
            before=inputs.get("before"),
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
        none="No matching jobs.",
        keep=("id", "state", "try", "age"),
    )
    if more:
        say(f"There are more: --after {jobs[-1].id}")


@derive(
    commands,
    "count",
    AnyTenant,
    Jobs.count,
    "holdfast jobs count --kind import --since 1d",
    without=tuple(BY_NAME),
)
def count_jobs(session: AnyTenant, inputs: dict[str, Any], state: JobState = None, *, which: JobFilterOptions) -> None:
    """Count jobs in each state, up to 10,000."""
    with session.connect() as client:
        wanted = which.wanted(client.run(client.store.clock.now()))
        result = Jobs(client).count(**wanted, state=state)
    if session.as_json:
        emit(result)
        return
    counts = [(each, f"{count:,}" + ("+" if count >= result.most else "")) for each, count in result.counts.items()]
    table(("state", "jobs"), [[state_text(each), count] for each, count in counts if count != "0"])
    if result.of_newest is not None:
        say(f"Of the newest {result.of_newest:,} jobs.")


@derive(
    commands,
    "search",
    AnyTenant,
    Jobs.search,
    "holdfast jobs search 'payload.order_id:7'",
    "holdfast jobs search 'kind:pay state:dead_letter payload.customer.id:c-9 declined'",
)
def search_jobs(session: AnyTenant, inputs: dict[str, Any]) -> None:
    with session.connect() as client:
        now = client.run(client.store.clock.now())
        result = Jobs(client).search(**inputs)
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
        none="No matching jobs among those examined." if result.next else "No matching jobs.",
        keep=("id", "state", "age"),
    )
    if result.next:
        say(f"There may be more: --after {result.next}")


@commands.add("index", "holdfast jobs index payload.order_id", "holdfast jobs index payload.order_id --remove")
def index(
    session: NoTenant,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A key of the payload: payload.customer.id.")],
    remove: Annotated[bool, Help("Remove the index instead.")] = False,
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


@derive(commands, "show", AnyTenant, Jobs.details, "holdfast jobs show 01a1de74-eb8c-70f1-843b-cac5f6817387")
def show(session: AnyTenant, inputs: dict[str, Any]) -> None:
    """Show a job: state, timeline, attempts, steps, payload and result."""
    with session.connect() as client:
        details = Jobs(client).details(full_id(client, inputs["job_id"]))
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
        print_chain(details.chain, details.job.id)
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


@derive(commands, "history", AnyTenant, Jobs.history, "holdfast jobs history 01a1de74-eb8c-70f1-843b-cac5f6817387")
def history(session: AnyTenant, inputs: dict[str, Any]) -> None:
    with session.connect() as client:
        details = Jobs(client).details(full_id(client, inputs["job_id"]))
    if session.as_json:
        emit(details.history)
    else:
        print_timeline(details.history, details.votes)


@derive(
    commands,
    "log",
    AnyTenant,
    Jobs.log,
    "holdfast jobs log 01a1de74-eb8c-70f1-843b-cac5f6817387",
    "holdfast jobs log 01a1de74 --attempt 2",
    "holdfast jobs log 01a1de74 --follow",
)
def log(
    session: AnyTenant,
    inputs: dict[str, Any],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the attempt has ended.")
    ] = False,
) -> None:
    """Print the log of an attempt: lines of ctx.log, or the output of a command job."""
    attempt, tail = inputs.get("attempt"), inputs.get("tail")
    with session.connect() as client:
        vault = Vault.of(config.artifact_location(client.store.url), config.key_text())
        job_id = full_id(client, inputs["job_id"])

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


@derive(
    commands,
    "artifact",
    AnyTenant,
    Jobs.artifact,
    "holdfast jobs artifact 01a1de74-eb8c-70f1-843b-cac5f6817387 report.csv --output report.csv",
)
def artifact(
    session: AnyTenant,
    inputs: dict[str, Any],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
) -> None:
    """Write the contents of an artifact to a file or to stdout."""
    with session.connect() as client:
        vault = Vault.of(config.artifact_location(client.store.url), config.key_text())
        job_id, name = full_id(client, inputs["job_id"]), inputs["name"]
        location = client.run(artifact_of(client.store, job_id, name, inputs.get("attempt"), client.tenant))
        data = read_artifact(vault, location)
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    with open_private(output) as file:
        file.write(data)
    session.answer({"file": str(output), "size": len(data)}, f"Wrote {len(data):,} bytes to {output}.")


@commands.add(
    "export-history",
    "holdfast jobs export-history --since 7d --output histories.jsonl",
    "holdfast jobs export-history ID1 ID2 --redact",
    brief="Export recorded jobs, for holdfast replay.",
)
def export_history(
    session: AnyTenant,
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID…]", help="Only these jobs.")] = None,
    state: JobState = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    redact: Annotated[bool, Help("Replace texts and numbers of payloads and values; their shape remains.")] = False,
    limit: Annotated[int | None, Help("Maximum number of jobs, newest first.", "N", low=1)] = None,
    *,
    which: JobFilterOptions,
) -> None:
    """Write what jobs have recorded, one line of JSON per job, for holdfast replay. The file contains the payloads and
    the values of steps, opened if they are sealed: protect it, or use --redact."""
    with session.connect() as client, ExitStack() as stack:
        client.vault = Vault.of(config.artifact_location(client.store.url), config.key_text())
        ids = [full_id(client, each) for each in job_ids or ()]
        wanted = which.wanted(client.run(client.store.clock.now()))
        if ids and (wanted or state):
            raise InvalidSetting("pass ids or a selection, not both", code="conflicting_options")
        found = Jobs(client).export_history(*ids, redact=redact, state=state, **wanted)
        file = sys.stdout.buffer if output is None else stack.enter_context(open_private(output))
        count = 0
        for history in islice(found, limit):
            file.write(history.to_json().encode() + b"\n")
            count += 1
    if output is None:
        sys.stdout.flush()
    else:
        session.answer({"file": str(output), "jobs": count}, f"Wrote {count:,} histories to {output}.")


def _inputs(
    self: Any,
    kind: Annotated[str, Help("The job's kind.", "KIND")],
    payload: Annotated[str, Help("JSON, @file, or - for stdin.", "PAYLOAD", argument=True)] = "{}",
    **options: Unpack[EnqueueOptions],
) -> Program[None]:
    """The inputs of ``holdfast enqueue``: those of ``App.enqueue`` that a command line can give."""
    raise NotImplementedError


@derived_command(OneTenant, operation(_inputs))
def enqueue(
    session: OneTenant,
    inputs: dict[str, Any],
    app: Annotated[
        str | None,
        Help(
            "App that declares the kind: checks the payload, and sets queue, priority, retry policy and tags.",
            "MODULE:APP",
        ),
    ] = None,
) -> None:
    """Enqueue one job and print its id."""
    kind, payload = inputs.pop("kind"), document(inputs.pop("payload"))
    with closing(_app(session, app, kind)) as target:
        handle = target.enqueue(kind, payload, tenant=session.scope, **inputs)
        declared = kind in target._all_kinds
    if session.as_json:
        emit({"id": handle.id, "tenant": handle.tenant, "created": handle.created, "reason": handle.reason})
        return
    write(handle.id)
    if handle.created and not declared:
        say(f"Stored without --app: queue {inputs.get('queue', DEFAULT_QUEUE)}, payload not checked against a handler.")
    if not handle.created:
        say(f"No new job: this one stands for it ({handle.reason}).")


def _app(session: OneTenant, name: str | None, kind: str) -> App:
    if name is None:
        app = App(config.database_url(session.url), name=NAME, schema=session.schema)
    else:
        app = load_app(name, session.url)
        if kind not in kinds_of(app):
            known = ", ".join(sorted(kinds_of(app))) or "none"
            raise NotFound(f"{name} declares no job {kind!r}", code="unknown_kind", fix=f"Declared jobs: {known}.")
    if not session_of(app).store.embedded:  # opening an embedded store creates or migrates it
        refuse_unready(session_of(app).store)
    return app


@derived_command(AnyTenant, Jobs.why)
def why(session: AnyTenant, inputs: dict[str, Any]) -> None:
    with session.connect() as client:
        answer = Jobs(client).why(full_id(client, inputs["job_id"]))
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
