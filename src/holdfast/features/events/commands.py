"""``holdfast events``, ``send-event``, ``subscriptions`` and ``consumers``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast import config
from holdfast.app import App
from holdfast.cli.options import data_of, document
from holdfast.cli.output import (
    Cell,
    duration,
    emit,
    heading,
    line,
    moment,
    plain,
    print_document,
    print_fields,
    say,
    table,
    to_json,
    write,
)
from holdfast.cli.session import NAME, AnyTenant, OneTenant, refuse_unready
from holdfast.cli.tree import Commands
from holdfast.engine.job import Event
from holdfast.engine.names import check_name
from holdfast.errors import Conflict
from holdfast.features.events.model import DEFAULT_DEPTH, MAX_DEPTH, JobOptions, Subscription
from holdfast.features.events.operations import Events, Subscriptions
from holdfast.features.events.read import check_events_gone
from holdfast.features.events.store import COUNTED
from holdfast.features.jobs.timeline import event_details, short_actor, transition
from holdfast.stores.requests import SentResult
from holdfast.stores.session import Session

commands = Commands("Manage subscriptions, which create jobs from events.")

SubscriptionName = Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name.")]


class From(StrEnum):
    NOW = "now"
    BEGINNING = "beginning"


@commands.add("list", "holdfast subscriptions list --all-tenants")
def list_subscriptions(session: AnyTenant) -> None:
    """List the subscriptions with their events, jobs and positions."""
    with session.connect() as client:
        features = Subscriptions(client)
        subscriptions = features.list()
        behind = {one.id: features.behind(one) for one in subscriptions}
    session.print_list(
        subscriptions,
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
        described=lambda one: _as_dict(one, behind[one.id]),
    )


@commands.add("show", "holdfast subscriptions show audit")
def show(session: AnyTenant, name: SubscriptionName) -> None:
    """Show a subscription: its events, its job, its position and refused events."""
    with session.connect() as client:
        features = Subscriptions(client)
        subscription = features.get(name)
        behind, refused = features.behind(subscription), features.deliveries(subscription, refused=True)
    if session.as_json:
        emit(_as_dict(subscription, behind) | {"refusals": refused})
        return
    _print(subscription, behind)
    if refused:
        heading("Refused")
        rows: list[list[Cell]] = [
            [moment(d.at) if d.at else "", line(d.event), line(d.refusal or ""), str(d.depth)] for d in refused
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
    name: SubscriptionName,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="PATTERN",
            help="Event types: job.succeeded, job.*, order.paid, order.*; a|b matches either.",
        ),
    ],
    makes: Annotated[
        str | None, typer.Option("--makes", metavar="KIND", help="Job kind to enqueue for each event.")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", metavar="NAME", help="Template to enqueue instead of a kind.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="NAME", help="Only events of jobs of this kind; * matches any.")
    ] = None,
    match: Annotated[
        str | None,
        typer.Option("--match", metavar="JSON", help='Values that the event\'s data must have: \'{"country": "fr"}\'.'),
    ] = None,
    start: Annotated[From, typer.Option("--from", metavar="WHEN", help="Where to start: now or beginning.")] = From.NOW,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload",
            metavar="JSON",
            help='Payload of the job; "$.data.id" inserts a value of the event, "$" the whole event.',
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Queue for the jobs.")] = None,
    executor: Annotated[
        str | None, typer.Option("--executor", metavar="LABEL", help="Label of the workers that may run the jobs.")
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Priority of the jobs.")] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="SPAN", help="Delay before a job may start: 90, 5m, 1h30m.")
    ] = None,
    max_depth: Annotated[
        int,
        typer.Option(
            "--max-depth",
            metavar="N",
            min=1,
            max=MAX_DEPTH,
            help="Maximum length of a chain of jobs that create each other.",
        ),
    ] = DEFAULT_DEPTH,
) -> None:
    """Create a subscription: each matching event creates one job. With --all-tenants, for the events of every
    tenant."""
    values: dict[str, Any] = {"queue": queue, "executor": executor, "priority": priority, "template": template}
    values["delay"] = None if delay is None else duration(delay, "--delay")
    values["payload"] = None if payload is None else document(payload)
    options = JobOptions(**{name: value for name, value in values.items() if value is not None})  # type: ignore[typeddict-item]
    data = None if match is None else document(match)
    with session.connect() as client:
        features = Subscriptions(client)
        subscription = features.set(
            name, on, makes, of_kind=kind, match=data, start=start.value, max_depth=max_depth, **options
        )
        _print_result(features, subscription, session.as_json)


@commands.add("pause", "holdfast subscriptions pause audit --reason 'too many'")
def pause(
    session: AnyTenant,
    name: SubscriptionName,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="The reason.")] = None,
) -> None:
    """Pause a subscription. Events that arrive meanwhile are kept until it resumes."""
    with session.connect() as client:
        features = Subscriptions(client)
        _print_result(features, features.pause(name, reason=reason), session.as_json)


@commands.add("resume", "holdfast subscriptions resume audit --skip")
def resume(
    session: AnyTenant,
    name: SubscriptionName,
    skip: Annotated[
        bool, typer.Option("--skip", help="Skip events that arrived while the subscription was paused.")
    ] = False,
) -> None:
    """Resume a subscription, beginning with the events that arrived meanwhile."""
    with session.connect() as client:
        features = Subscriptions(client)
        _print_result(features, features.resume(name, skip=skip), session.as_json)


@commands.add("delete", "holdfast subscriptions delete audit")
def delete(session: AnyTenant, name: SubscriptionName) -> None:
    """Remove a subscription. Its jobs stay. A subscription declared in code returns with the next worker."""
    with session.connect() as client:
        Subscriptions(client).remove(name)
    session.answer({"name": name, "deleted": True}, f"{name} is gone.")


def _print_result(features: Subscriptions, one: Subscription, as_json: bool) -> None:
    behind = features.behind(one)
    if as_json:
        emit(_as_dict(one, behind))
    else:
        _print(one, behind)


def _as_dict(one: Subscription, behind: int) -> dict[str, Any]:
    names = (
        *("name", "tenant", "pattern", "kind", "match", "job_kind", "job_options", "max_depth", "declared"),
        *("made", "refused", "failure", "failed_at", "paused_at", "paused_by", "paused_reason"),
        *("created_at", "created_by"),
    )
    return {name: getattr(one, name) for name in names} | {"behind": behind}


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
        reason = f": {one.paused_reason}" if one.paused_reason else ""
        paused = f"since {moment(one.paused_at)} by {one.paused_by}{reason}"
    write(one.name)
    print_fields(
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


PAGE = 100
POLL_INTERVAL = 0.5


def events(
    session: AnyTenant,
    consumer: Annotated[
        str | None,
        typer.Option("--consumer", metavar="NAME", help="Continue at this consumer's stored position, and update it."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep waiting for new events until Ctrl-C.")] = False,
    after: Annotated[str | None, typer.Option("--after", metavar="CURSOR", help="Start after this event.")] = None,
    skip_gaps: Annotated[
        bool, typer.Option("--skip-gaps", help="Continue after a gap if retention has removed unread events.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Maximum number of events (100 unless --follow).")
    ] = None,
) -> None:
    """Print the ledger in commit order. With --follow, --json prints one object per line."""
    if consumer is not None and after is not None:
        raise typer.BadParameter("give --consumer or --after, not both")
    reader = None if consumer is None else check_name(consumer, "consumer")
    most = limit if limit is not None or follow else PAGE
    last: Event | None = None
    collected: list[Event] = []
    with session.connect() as client:
        for page in _pages(client, reader, after, most, follow, skip_gaps):
            last = page[-1]
            if session.as_json and not follow:
                collected += page
                continue
            for event in page:
                sys.stdout.write((to_json(event) if session.as_json else _line(event)) + "\n")
            sys.stdout.flush()
    if session.as_json and not follow:
        emit(collected)
    if last is not None and reader is None:
        say(f"To continue from here: --after '{last.cursor}'")


def _pages(
    client: Session, consumer: str | None, after: str | None, most: int | None, follow: bool, skip_gaps: bool
) -> Iterator[list[Event]]:
    """Pages until there are no more. A consumer's position advances after its page was printed, so each event is
    printed at least once."""
    position = after if consumer is None else client.run(client.store.ledger.cursor(consumer, client.tenant))
    left = most
    while left is None or left > 0:
        want = PAGE if left is None else min(PAGE, left)
        page = client.run(client.store.ledger.read(position, want, client.tenant))
        if consumer is None and position is not None and not skip_gaps:  # a consumer holds back a purge
            client.run(check_events_gone(client.store, position, client.tenant))
        if page:
            yield page
            if consumer is not None:
                _save_position(client, consumer, page[-1].cursor, position)
            position = page[-1].cursor
            left = None if left is None else left - len(page)
        elif follow:
            time.sleep(POLL_INTERVAL)
        else:
            return


def _save_position(client: Session, consumer: str, cursor: str, was: str | None) -> None:
    if not client.run(client.store.ledger.save_cursor(consumer, cursor, was, client.tenant)):
        raise Conflict(f"another process is reading as consumer {consumer!r}", code="consumer_moved")


def _line(event: Event) -> str:
    attempt = f" try {event.attempt}" if event.attempt else ""
    details = line(event_details(event))
    text = (
        f"{moment(event.at)}  {event.job_id}  {line(event.kind, 60)}  {event.type}  {transition(event).plain}{attempt}"
    )
    return plain(f"{text}  by {short_actor(event.actor)}" + (f"  {details}" if details else ""))


consumer_commands = Commands("Manage event consumers and their stored positions.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The consumer's name.")]


@consumer_commands.add("list", "holdfast consumers list")
def list_consumers(session: AnyTenant) -> None:
    """List event consumers with their positions and how far each is behind."""
    with session.connect() as client:
        consumers = Events(client).consumers()
    session.print_list(
        consumers,
        {
            "name": lambda consumer: line(consumer.name),
            "tenant": lambda consumer: line(consumer.tenant),
            "reads": lambda consumer: consumer.of,
            "behind": lambda consumer: behind_by(consumer.behind),
            "moved": lambda consumer: moment(consumer.updated_at),
        },
        none="There are no consumers.",
        keep=("behind", "moved"),
    )


@consumer_commands.add("reset", "holdfast consumers reset billing --to now")
def reset_consumer(
    session: AnyTenant,
    name: Name,
    to: Annotated[From, typer.Option("--to", metavar="WHEN", help="New position: beginning or now.")] = From.BEGINNING,
) -> None:
    """Move a consumer to the beginning of the ledger, or to now."""
    with session.connect() as client:
        Events(client).reset_consumer(name, to.value)
    session.answer(
        {"name": name, "to": to.value}, f"{name} continues from {'the beginning' if to is From.BEGINNING else 'now'}."
    )


@consumer_commands.add("remove", "holdfast consumers remove billing")
def remove_consumer(session: AnyTenant, name: Name) -> None:
    """Remove a consumer and its position. The next read under its name starts again."""
    with session.connect() as client:
        Events(client).remove_consumer(name)
    session.answer({"name": name, "removed": True}, f"{name} is gone.")


def send_event(
    session: OneTenant,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The event's name.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="Data: JSON, @file, - for stdin, or name=value pairs."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="TEXT", help="Idempotency key: sending it again creates no second event."),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Send it only to this job.")] = None,
) -> None:
    """Send an application event to waiting jobs.

    Jobs that wait for the event resume; jobs that wait later find it. Prints the event's id. A value that is JSON (a
    number, a boolean, null, a list or an object) is read as JSON, everything else as text.
    """
    event_data, tenant = data_of(data or []), session.scope
    with closing(App(config.database_url(session.url), name=NAME, schema=session.schema)) as app:
        refuse_unready(app._store)
        sent = app.send_event(name, event_data, key=key, job=job, tenant=tenant)
    if session.as_json:
        emit(sent)
    else:
        write(sent.id)
    say(_sent_message(sent))


def _sent_message(sent: SentResult) -> str:
    if not sent.created:
        return "Already sent with this key: this is the existing event, and no job resumes."
    resumed = {0: "no job waited for it", 1: "1 job resumes"}.get(sent.woke, f"{sent.woke} jobs resume")
    return f"New: {resumed}."
