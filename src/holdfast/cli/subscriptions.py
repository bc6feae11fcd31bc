"""``holdfast subscriptions …`` and ``holdfast consumers …``: events that make jobs, and who reads events."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, facts, heading, line, print_document, say, table, write
from holdfast.cli.reading import document
from holdfast.cli.session import connect, scope
from holdfast.cli.words import duration, moment
from holdfast.domain.errors import NotFound
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.subscriptions import DEPTH, MOST_DEEP, JobOptions, Subscription
from holdfast.features.subscriptions import Consumers, Subscriptions
from holdfast.stores.reads.subscriptions import COUNTED

Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name.")]
ConsumerName = Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name.")]


class From(StrEnum):
    NOW = "now"
    BEGINNING = "beginning"


def list_subscriptions(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List the subscriptions: which events make which jobs, and how far each has come."""
    whose = scope(tenant, all_tenants)
    with connect(url, whose, schema) as client:
        features = Subscriptions(client)
        found = [(one, features.behind(one)) for one in features.list()]
    if as_json:
        emit([_described(one, behind) for one, behind in found])
    elif not found:
        say("There are no subscriptions.")
    else:
        with_tenant = whose == EVERY_TENANT
        headers = ["name", *(["tenant"] if with_tenant else []), "on", "makes", "state", "behind", "made", "refused"]
        rows: list[list[Cell]] = [
            [
                line(one.name),
                *([line(one.tenant)] if with_tenant else []),
                line(_on(one)),
                line(one.job_kind),
                _state(one),
                _behind(behind),
                f"{one.made:,}",
                f"{one.refused:,}",
            ]
            for one, behind in found
        ]
        table(headers, rows, keep=("state", "behind", "made", "refused"))


def show(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show a subscription: what it wants and makes, how far it has come, and the events that it refused."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        features = Subscriptions(client)
        found = features.get(name)
        if found is None:
            raise NotFound(f"there is no subscription {name} in this tenant", code="subscription_not_found")
        behind, refused = features.behind(found), features.deliveries(found, refused=True)
    if as_json:
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


def create(
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
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Have each event that fits make one job. With --all-tenants of every tenant's events, each in its tenant."""
    how: dict[str, Any] = {"queue": queue, "priority": priority, "template": template}
    how["delay"] = None if delay is None else duration(delay, "--delay")
    how["payload"] = None if payload is None else document(payload)
    given = JobOptions(**{name: value for name, value in how.items() if value is not None})  # type: ignore[typeddict-item]
    wanted = None if match is None else document(match)
    with connect(url, scope(tenant, all_tenants), schema) as client:
        features = Subscriptions(client)
        made = features.create(
            name, on, makes, of_kind=kind, match=wanted, start=start.value, max_depth=max_depth, **given
        )
        _told(features, made, as_json)


def pause(
    name: Name,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")] = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Make no more jobs; what happens meanwhile is kept for when it goes on."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        features = Subscriptions(client)
        _told(features, features.pause(name, reason=reason), as_json)


def resume(
    name: Name,
    skip: Annotated[bool, typer.Option("--skip", help="Without what happened meanwhile.")] = False,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Go on, with what happened meanwhile."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        features = Subscriptions(client)
        _told(features, features.resume(name, skip=skip), as_json)


def delete(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Remove a subscription. The jobs it made stay; one that a program declares comes back with its next worker."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        Subscriptions(client).delete(name)
    if as_json:
        emit({"name": name, "deleted": True})
    else:
        say(f"{name} is gone.")


def list_consumers(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List who reads events with a place that is kept, and how far behind each is."""
    whose = scope(tenant, all_tenants)
    with connect(url, whose, schema) as client:
        found = Consumers(client).list()
    if as_json:
        emit(found)
    elif not found:
        say("There are no consumers.")
    else:
        rows: list[list[Cell]] = [
            [line(each.name), line(each.tenant), each.of, _behind(each.behind), moment(each.updated_at)]
            for each in found
        ]
        table(("name", "tenant", "reads", "behind", "moved"), rows, keep=("behind", "moved"))


def reset_consumer(
    name: ConsumerName,
    to: Annotated[From, typer.Option("--to", metavar="WHEN", help="the beginning, or now.")] = From.BEGINNING,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Have a consumer read everything again, or nothing of what there is."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        Consumers(client).reset(name, to.value)
    if as_json:
        emit({"name": name, "to": to.value})
    else:
        say(f"{name} goes on from {'the beginning' if to is From.BEGINNING else 'now'}.")


def remove_consumer(
    name: ConsumerName,
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Forget a consumer's place; reading under its name begins anew."""
    with connect(url, scope(tenant, all_tenants), schema) as client:
        Consumers(client).remove(name)
    if as_json:
        emit({"name": name, "removed": True})
    else:
        say(f"{name} is gone.")


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


def _behind(count: int) -> str:
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
            ("behind", _behind(behind)),
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
