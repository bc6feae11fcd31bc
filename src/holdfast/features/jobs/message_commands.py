"""``holdfast jobs send | answer | value | values | streams | stream``: talk to a job that runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from holdfast import config
from holdfast.cli.derived import derive
from holdfast.cli.options import document
from holdfast.cli.output import emit, plain, say, to_json, write
from holdfast.cli.session import AnyTenant, OneTenant, full_id
from holdfast.engine.json_schema import as_json
from holdfast.engine.messages import Published
from holdfast.features.jobs.commands import commands
from holdfast.features.jobs.operations import Jobs
from holdfast.features.payloads.model import HIDDEN
from holdfast.features.streams.model import Chunk
from holdfast.stores.vault import Vault, shown


@derive(
    commands,
    "send",
    OneTenant,
    Jobs.send,
    "holdfast jobs send 01a1de74-eb8c-70f1-843b-cac5f6817387 approve '{\"limit\": 100}'",
)
def send(session: OneTenant, inputs: dict[str, Any]) -> None:
    """Send a message to a job: JSON, text, @file, or - for stdin."""
    text = inputs.pop("data", None)
    data = None if text is None else document(text) if text.startswith(("@", "-")) else as_json(text)
    with session.connect() as client:
        sent = Jobs(client).send(**{**inputs, "data": data, "job_id": full_id(client, inputs["job_id"])})
    if session.as_json:
        emit(sent)
    else:
        write(sent.id)
    say("Sent." if sent.created else "Already sent with this key: this is the existing message.")


@derive(
    commands,
    "answer",
    AnyTenant,
    Jobs.answer,
    "holdfast jobs answer 01a1de74-eb8c-70f1-843b-cac5f6817387 01a1de75-0c2b-7d11-9d27-1f5a6a1f1d10",
)
def answer(session: AnyTenant, inputs: dict[str, Any]) -> None:
    with session.connect() as client:
        found = Jobs(client).answer(full_id(client, inputs["job_id"]), inputs["message_id"])
    _print_value(session, found, "No answer yet.")


@derive(commands, "value", AnyTenant, Jobs.value, "holdfast jobs value 01a1de74-eb8c-70f1-843b-cac5f6817387 state")
def value(session: AnyTenant, inputs: dict[str, Any]) -> None:
    with session.connect() as client:
        found = Jobs(client).value(full_id(client, inputs["job_id"]), inputs["name"])
    _print_value(session, found, "Nothing was published under this name.")


def _print_value(session: AnyTenant, found: Published | None, none: str) -> None:
    if session.as_json:
        emit(found)
    elif found is None:
        say(none)
    else:
        write(plain(json.dumps(shown(found.value), ensure_ascii=False)))


@derive(commands, "streams", AnyTenant, Jobs.streams, "holdfast jobs streams 01a1de74-eb8c-70f1-843b-cac5f6817387")
def streams(session: AnyTenant, inputs: dict[str, Any]) -> None:
    with session.connect() as client:
        names = Jobs(client).streams(full_id(client, inputs["job_id"]))
    session.print_list(names, {"name": lambda name: name}, none="No streams.")


@derive(commands, "values", AnyTenant, Jobs.values, "holdfast jobs values 01a1de74-eb8c-70f1-843b-cac5f6817387")
def values(session: AnyTenant, inputs: dict[str, Any]) -> None:
    """List the values that the handler has published."""
    with session.connect() as client:
        found = Jobs(client).values(full_id(client, inputs["job_id"]))
    session.print_list(
        found,
        {
            "name": lambda each: each.name,
            "value": lambda each: plain(json.dumps(shown(each.value), ensure_ascii=False)),
            "attempt": lambda each: str(each.attempt),
            "at": lambda each: f"{each.at:%Y-%m-%d %H:%M:%S}",
        },
        none="No values.",
    )


@derive(
    commands,
    "stream",
    AnyTenant,
    Jobs.stream,
    "holdfast jobs stream 01a1de74-eb8c-70f1-843b-cac5f6817387 tokens",
    "holdfast jobs stream 01a1de74 tokens --no-follow --json",
)
def stream(
    session: AnyTenant,
    inputs: dict[str, Any],
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Print new chunks until the job has ended.")
    ] = True,
) -> None:
    """Print an output stream of a job as its handler writes it: text as it is, other chunks as JSON."""
    with session.connect() as client:
        client.vault = Vault.of(config.artifact_location(client.store.url), config.key_text())
        jobs, after = Jobs(client), inputs.get("after")
        job = jobs.get(full_id(client, inputs["job_id"]))
        if follow and job.payload != HIDDEN:
            chunks: Iterable[Chunk] = jobs.handle(job.id, tenant=job.tenant).stream(inputs["name"], after=after)
        else:
            chunks = _written(jobs, job.id, inputs["name"], after)
        for chunk in chunks:
            if chunk.replaces:
                where = f"of step {chunk.step or 'in a branch'}" if chunk.section % 2 else "between the steps"
                say(f"Attempt {chunk.attempt} replaces the text {where}.")
            is_text = isinstance(chunk.data, str) and not session.as_json
            sys.stdout.write(plain(chunk.data) if is_text else to_json(chunk if session.as_json else chunk.data) + "\n")
            sys.stdout.flush()


def _written(jobs: Jobs, job_id: str, name: str, after: str | None) -> Iterator[Chunk]:
    """The chunks that are there now."""
    while (page := jobs.stream(job_id, name, after=after)).chunks:
        yield from page.chunks
        after = page.next
