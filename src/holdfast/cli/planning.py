"""Common ground of ``holdfast schedules`` and ``holdfast templates``: their options, and who makes the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.cli.loading import load_app
from holdfast.cli.session import connect, scope
from holdfast.cli.words import duration
from holdfast.client import Client, new_id
from holdfast.domain.job import JobSpec
from holdfast.domain.payload import encode
from holdfast.domain.policies import Retry
from holdfast.features.schedules import Schedules
from holdfast.features.templates import Templates
from holdfast.kind import PAYLOAD_LIMIT, Prepared, make_spec
from holdfast.scheduling import Desk

Make = Callable[[str, Any, dict[str, Any]], JobSpec]

Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue of its jobs; else their kind's.")]
Priority = Annotated[int | None, typer.Option("--priority", metavar="N", help="Higher goes first.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="The agent its jobs are for.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be repeated.")]
Attempts = Annotated[int | None, typer.Option("--max-attempts", metavar="N", min=1, max=101, help="Tries of a job.")]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="SPAN", help="Not begun later than this after its time: 5m, 2h.")
]
FromApp = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="Check against its kinds, and use their defaults.")
]


class MissedPolicy(StrEnum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class OverlapPolicy(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


Missed = Annotated[
    MissedPolicy | None,
    typer.Option("--missed", metavar="HOW", help="Times missed: skip, fire once for all of them, or all (up to 100)."),
]
Overlap = Annotated[
    OverlapPolicy | None,
    typer.Option("--overlap", metavar="HOW", help="While a job of it runs: allow another, skip the time, or queue it."),
]
Jitter = Annotated[str | None, typer.Option("--jitter", metavar="SPAN", help="Spread each time over this: 30s, 5m.")]
Zone = Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="The time zone: Europe/Paris; else UTC.")]


def given(
    queue: str | None = None,
    priority: int | None = None,
    agent: str | None = None,
    tags: Sequence[str] | None = None,
    max_attempts: int | None = None,
    deadline: str | None = None,
) -> dict[str, Any]:
    """The options that were given, in the words of ``Options``."""
    said = {
        "queue": queue,
        "priority": priority,
        "agent": agent,
        "tags": list(tags) if tags else None,
        "retry": None if max_attempts is None else Retry(max_attempts=max_attempts),
        "deadline": None if deadline is None else duration(deadline, "--deadline"),
    }
    return {name: value for name, value in said.items() if value is not None}


@contextmanager
def scheduling(
    url: str | None, tenant: str | None, schema: str, app: str | None = None, all_tenants: bool = False
) -> Iterator[tuple[Client, Schedules]]:
    with connect(url, scope(tenant, all_tenants), schema) as client:
        yield client, Schedules(client, _maker(client, app, url), new_id)


@contextmanager
def templating(
    url: str | None, tenant: str | None, schema: str, app: str | None = None, all_tenants: bool = False
) -> Iterator[Templates]:
    with connect(url, scope(tenant, all_tenants), schema) as client:
        make, known = _maker(client, app, url), load_app(app, url).kinds if app else {}

        def prepare(kind: str, payload: Any, chosen: Any) -> Prepared[Any]:
            return Prepared(make(kind, payload, chosen), chosen.get("tenant", client.tenant), lambda value: value)

        yield Templates(client, Desk(client, known, prepare))


def _maker(client: Client, app: str | None, url: str | None) -> Make:
    """Without an app nothing is known of a kind: what is made has the options that were given, and no others."""
    if app is not None:
        return load_app(app, url).scheduler.make

    def make(kind: str, payload: Any, chosen: Any) -> JobSpec:
        text = encode(payload, limit=PAYLOAD_LIMIT)
        return make_spec(kind, text, chosen, client, "retry" in chosen)[0]

    return make
