"""``holdfast subscriptions list | show | create | pause | resume | delete``: events that make jobs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.output import Cell, emit, facts, heading, line, print_document, table, write
from holdfast.cli.reading import document
from holdfast.cli.session import AnyTenant
from holdfast.cli.tree import Commands
from holdfast.cli.words import duration, moment
from holdfast.errors import NotFound
from holdfast.features.events.model import DEPTH, MOST_DEEP, JobOptions, Subscription
from holdfast.features.events.operations import Subscriptions
from holdfast.stores.reads.subscriptions import COUNTED

commands = Commands("Have events make jobs: subscriptions.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name.")]


class From(StrEnum):
    NOW = "now"
    BEGINNING = "beginning"


@commands.add("list", "holdfast subscriptions list --all-tenants")
def list_subscriptions(session: AnyTenant) -> None:
    """List the subscriptions: which events make which jobs, and how far each has come."""
    with session.connect() as client:
        features = Subscriptions(client)
        found = features.list()
        behind = {one.id: features.behind(one) for one in found}
    session.print_list(
        found,
        {
            "name": lambda one: line(one.name),
            **session.tenants,
            "on": lambda one: line(_on(one)),
            "makes": lambda one: line(one.job_kind),
            "state": _state,
            "behind": lambda one: behind_by(behind[one.id]),
            "made": lambda one: f"{one.made:,}",
            "refused": lambda one: f"{one.refused:,}",
        },
        none="There are no subscriptions.",
        keep=("state", "behind", "made", "refused"),
        described=lambda one: _described(one, behind[one.id]),
    )


@commands.add("show", "holdfast subscriptions show audit")
def show(session: AnyTenant, name: Name) -> None:
    """Show a subscription: what it wants and makes, how far it has come, and the events that it refused."""
    with session.connect() as client:
        features = Subscriptions(client)
        found = features.get(name)
        if found is None:
            raise NotFound(f"there is no subscription {name} in this tenant", code="subscription_not_found")
        behind, refused = features.behind(found), features.deliveries(found, refused=True)
    if session.as_json:
        emit(_described(found, behind) | {"refusals": refused})
        return
    _print(found, behind)
    if refused:
        heading("Refused")
        rows: list[list[Cell]] = [
            [moment(each.at) if each.at else "", line(each.event), line(each.refusal or ""), str(each.depth)]
            for each in refused
        ]
        table(("at", "event", "why", "depth"), rows)


@commands.add(
    "create",
    "holdfast subscriptions create index --on job.succeeded --kind 'import*' --makes reindex",
    """holdfast subscriptions create ship --on order.paid --match '{"country": "fr"}' --makes ship \\""",
    """  --payload '{"order": "$.data.order"}' --from beginning""",
)
def create(
    session: AnyTenant,
    name: Name,
    on: Annotated[
        str, typer.Option("--on", metavar="PATTERN", help="job.succeeded, job.*, order.paid, order.*; a|b is either.")
    ],
    makes: Annotated[
        str | None, typer.Option("--makes", metavar="KIND", help="The kind of the job that each event makes.")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", metavar="NAME", help="A template to make the job from, instead.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="NAME", help="Only of jobs of this kind; * is anything.")
    ] = None,
    match: Annotated[
        str | None, typer.Option("--match", metavar="JSON", help='What the event must say: \'{"country": "fr"}\'.')
    ] = None,
    start: Annotated[
        From, typer.Option("--from", metavar="WHEN", help="now, or the beginning of all there is.")
    ] = From.NOW,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload", metavar="JSON", help='Of the job; "$.data.id" is a value of the event, "$" all of it.'
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue of the jobs.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Their priority.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", metavar="SPAN", help="Not before: 90, 5m, 1h30m.")] = None,
    max_depth: Annotated[
        int, typer.Option("--max-depth", metavar="N", min=1, max=MOST_DEEP, help="How long a chain of jobs may become.")
    ] = DEPTH,
) -> None:
    """Have each event that fits make one job. With --all-tenants of every tenant's events, each in its tenant."""
    how: dict[str, Any] = {"queue": queue, "priority": priority, "template": template}
    how["delay"] = None if delay is None else duration(delay, "--delay")
    how["payload"] = None if payload is None else document(payload)
    given = JobOptions(**{name: value for name, value in how.items() if value is not None})  # type: ignore[typeddict-item]
    wanted = None if match is None else document(match)
    with session.connect() as client:
        features = Subscriptions(client)
        made = features.create(
            name, on, makes, of_kind=kind, match=wanted, start=start.value, max_depth=max_depth, **given
        )
        _told(features, made, session.as_json)


@commands.add("pause", "holdfast subscriptions pause audit --reason 'too many'")
def pause(
    session: AnyTenant,
    name: Name,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")] = None,
) -> None:
    """Make no more jobs; what happens meanwhile is kept for when it goes on."""
    with session.connect() as client:
        features = Subscriptions(client)
        _told(features, features.pause(name, reason=reason), session.as_json)


@commands.add("resume", "holdfast subscriptions resume audit --skip")
def resume(
    session: AnyTenant,
    name: Name,
    skip: Annotated[bool, typer.Option("--skip", help="Without what happened meanwhile.")] = False,
) -> None:
    """Go on, with what happened meanwhile."""
    with session.connect() as client:
        features = Subscriptions(client)
        _told(features, features.resume(name, skip=skip), session.as_json)


@commands.add("delete", "holdfast subscriptions delete audit")
def delete(session: AnyTenant, name: Name) -> None:
    """Remove a subscription. The jobs it made stay; one that a program declares comes back with its next worker."""
    with session.connect() as client:
        Subscriptions(client).delete(name)
    session.answer({"name": name, "deleted": True}, f"{name} is gone.")


def _told(features: Subscriptions, one: Subscription, as_json: bool) -> None:
    behind = features.behind(one)
    if as_json:
        emit(_described(one, behind))
    else:
        _print(one, behind)


def _described(one: Subscription, behind: int) -> dict[str, Any]:
    names = ("name", "tenant", "pattern", "kind", "match", "job_kind", "job_options", "max_depth", "declared")
    counts = (
        "made",
        "refused",
        "failure",
        "failed_at",
        "paused_at",
        "paused_by",
        "paused_reason",
        "created_at",
        "created_by",
    )
    return {name: getattr(one, name) for name in (*names, *counts)} | {"behind": behind}


def _on(one: Subscription) -> str:
    return one.pattern + (f" of {one.kind}" if one.kind else "")


def behind_by(count: int) -> str:
    return f"{count:,} or more" if count >= COUNTED else f"{count:,}"


def _state(one: Subscription) -> Text:
    if one.paused_at is not None:
        return Text("paused", "yellow")
    return Text("failing", "bold red") if one.failure is not None else Text("active", "green")


def _print(one: Subscription, behind: int) -> None:
    paused = None
    if one.paused_at is not None:
        why = f": {one.paused_reason}" if one.paused_reason else ""
        paused = f"since {moment(one.paused_at)} by {one.paused_by}{why}"
    write(one.name)
    facts(
        [
            ("state", _state(one)),
            ("paused", paused),
            (
                "failure",
                None if one.failure is None else f"{one.failure} ({moment(one.failed_at)})" if one.failed_at else None,
            ),
            ("tenant", one.tenant),
            ("on", _on(one)),
            ("makes", one.job_kind),
            ("declared", "in a program" if one.declared else None),
            ("behind", behind_by(behind)),
            ("made", f"{one.made:,}"),
            ("refused", f"{one.refused:,}"),
            ("depth", f"up to {one.max_depth}"),
            ("created", f"{moment(one.created_at)} by {one.created_by}"),
        ]
    )
    if one.match is not None:
        print_document("Match", one.match)
    if one.job_options:
        print_document("Jobs", one.job_options)
