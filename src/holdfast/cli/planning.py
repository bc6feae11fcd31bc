"""Common ground of ``holdfast schedules`` and ``holdfast templates``: their options, and who makes the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.app.declarations import Desk
from holdfast.cli.loading import load_app
from holdfast.cli.session import Session
from holdfast.cli.words import duration
from holdfast.engine.job import JobSpec
from holdfast.engine.payload import encode
from holdfast.engine.retry import Retry
from holdfast.features.schedules.operations import Schedules
from holdfast.features.schedules.templates import Templates
from holdfast.kind import PAYLOAD_LIMIT, Prepared, make_spec
from holdfast.stores.ids import new_id
from holdfast.stores.session import Client

Make = Callable[[str, Any, dict[str, Any]], JobSpec]

FromApp = Annotated[
    str | None, typer.Option("--app", metavar="MODULE:APP", help="Check against its kinds, and use their defaults.")
]


Zone = Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="The time zone: Europe/Paris; else UTC.")]


class MissedPolicy(StrEnum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class OverlapPolicy(StrEnum):
    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """How a schedule takes its times."""

    tz: Zone = None
    missed: Annotated[
        MissedPolicy | None,
        typer.Option(
            "--missed", metavar="HOW", help="Times missed: skip, fire once for all of them, or all (up to 100)."
        ),
    ] = None
    overlap: Annotated[
        OverlapPolicy | None,
        typer.Option(
            "--overlap", metavar="HOW", help="While a job of it runs: allow another, skip the time, or queue it."
        ),
    ] = None
    jitter: Annotated[
        str | None, typer.Option("--jitter", metavar="SPAN", help="Spread each time over this: 30s, 5m.")
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        said = {
            "tz": self.tz,
            "missed": None if self.missed is None else self.missed.value,
            "overlap": None if self.overlap is None else self.overlap.value,
            "jitter": None if self.jitter is None else duration(self.jitter, "--jitter"),
        }
        return {name: value for name, value in said.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Made:
    """What the jobs that are made begin with."""

    queue: Annotated[
        str | None, typer.Option("--queue", metavar="NAME", help="The queue of its jobs; else their kind's.")
    ] = None
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Higher goes first.")] = None
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="The agent its jobs are for.")] = None
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be repeated.")] = None
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", metavar="N", min=1, max=101, help="Tries of a job.")
    ] = None
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="SPAN", help="Not begun later than this after its time: 5m, 2h.")
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """In the words of ``Options``."""
        said = {
            "queue": self.queue,
            "priority": self.priority,
            "agent": self.agent,
            "tags": list(self.tag) if self.tag else None,
            "retry": None if self.max_attempts is None else Retry(max_attempts=self.max_attempts),
            "deadline": None if self.deadline is None else duration(self.deadline, "--deadline"),
        }
        return {name: value for name, value in said.items() if value is not None}


@contextmanager
def scheduling(session: Session, app: str | None = None) -> Iterator[tuple[Client, Schedules]]:
    with session.connect() as client:
        yield client, Schedules(client, _maker(client, app, session.url), new_id)


@contextmanager
def templating(session: Session, app: str | None = None) -> Iterator[Templates]:
    with session.connect() as client:
        make, known = _maker(client, app, session.url), load_app(app, session.url).kinds if app else {}

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
