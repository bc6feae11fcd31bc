"""``holdfast events``, ``send-event``, ``subscriptions`` and ``consumers``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast import config
from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.cli.derived import derive
from holdfast.cli.options import data_of
from holdfast.cli.output import (
    Cell,
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
from holdfast.engine.declared import Help
from holdfast.engine.job import Event
from holdfast.engine.names import check_name
from holdfast.errors import Conflict
from holdfast.features.events.model import Consumer, Delivery, Subscription
from holdfast.features.events.operations import Consumers, Subscriptions, check_events_gone
from holdfast.features.events.store import COUNTED
from holdfast.features.jobs.timeline import event_details, short_actor, transition
from holdfast.stores.requests import SentResult
from holdfast.stores.session import Session

commands = Commands("Manage subscriptions, which create jobs from events.")


@derive(commands, "list", AnyTenant, Subscriptions.list, "holdfast subscriptions list --all-tenants")
def list_subscriptions(session: AnyTenant, result: list[Subscription], namespace: Subscriptions) -> None:
    behind = {one.id: namespace.behind(one.name, tenant=one.tenant) for one in result}
    session.print_list(
        result,
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
        none="No subscriptions.",
        keep=("state", "behind", "made", "refused"),
        described=lambda one: _as_dict(one, behind[one.id]),
    )


@derive(commands, "show", AnyTenant, Subscriptions.get, "holdfast subscriptions show audit")
def show(session: AnyTenant, result: Subscription, namespace: Subscriptions) -> None:
    behind = namespace.behind(result.name, tenant=result.tenant)
    refused = namespace.deliveries(result.name, refused=True, tenant=result.tenant)
    if session.as_json:
        emit(_as_dict(result, behind) | {"refusals": refused})
        return
    _print(result, behind)
    if refused:
        heading("Refused")
        rows: list[list[Cell]] = [
            [moment(d.at) if d.at else "", line(d.event), line(d.refusal or ""), str(d.depth)] for d in refused
        ]
        table(("at", "event", "why", "depth"), rows)


@derive(commands, "resume", AnyTenant, Subscriptions.resume, "holdfast subscriptions resume audit --skip")
@derive(commands, "pause", AnyTenant, Subscriptions.pause, "holdfast subscriptions pause audit --reason 'too many'")
@derive(
    commands,
    "set",
    AnyTenant,
    Subscriptions.set,
    "holdfast subscriptions set index --on job.succeeded --kind 'import*' --makes reindex",
    """holdfast subscriptions set ship --on order.paid --match '{"country": "fr"}' --makes ship \\""",
    """  --payload '{"order": "$.data.order"}' --from beginning""",
)
def print_subscription(session: AnyTenant, result: Subscription, namespace: Subscriptions) -> None:
    behind = namespace.behind(result.name, tenant=result.tenant)
    if session.as_json:
        emit(_as_dict(result, behind))
    else:
        _print(result, behind)


@derive(
    commands, "deliveries", AnyTenant, Subscriptions.deliveries, "holdfast subscriptions deliveries audit --refused"
)
def print_deliveries(session: AnyTenant, result: list[Delivery]) -> None:
    session.print_list(
        result,
        {
            "at": lambda delivery: moment(delivery.at) if delivery.at else "",
            "event": lambda delivery: line(delivery.event),
            "job": lambda delivery: delivery.job_id or "",
            "refused": lambda delivery: line(delivery.refusal or ""),
            "depth": lambda delivery: str(delivery.depth),
        },
        none="No events matched it yet.",
        keep=("at", "job"),
    )


@derive(commands, "remove", AnyTenant, Subscriptions.remove, "holdfast subscriptions remove audit")
def remove_subscription(session: AnyTenant, result: None, name: str) -> None:
    session.answer({"name": name, "removed": True}, f"Removed subscription {name}.")


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
    consumer: Annotated[str | None, Help("Continue at this consumer's stored position, and update it.", "NAME")] = None,
    follow: Annotated[bool, Help("Keep waiting for new events until Ctrl-C.")] = False,
    after: Annotated[str | None, Help("Start after this event.", "CURSOR")] = None,
    skip_gaps: Annotated[bool, Help("Continue after a gap if retention has removed unread events.")] = False,
    limit: Annotated[int | None, Help("Maximum number of events (100 unless --follow).", "N", low=1)] = None,
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


@derive(consumer_commands, "list", AnyTenant, Consumers.list, "holdfast consumers list")
def list_consumers(session: AnyTenant, result: list[Consumer]) -> None:
    session.print_list(
        result,
        {
            "name": lambda consumer: line(consumer.name),
            "tenant": lambda consumer: line(consumer.tenant),
            "reads": lambda consumer: consumer.of,
            "behind": lambda consumer: behind_by(consumer.behind),
            "moved": lambda consumer: moment(consumer.updated_at),
        },
        none="No consumers.",
        keep=("behind", "moved"),
    )


@derive(consumer_commands, "reset", AnyTenant, Consumers.reset, "holdfast consumers reset billing --to now")
def reset_consumer(session: AnyTenant, result: None, name: str, to: str) -> None:
    session.answer(
        {"name": name, "to": to}, f"{name} continues from {'the beginning' if to == 'beginning' else 'now'}."
    )


@derive(consumer_commands, "remove", AnyTenant, Consumers.remove, "holdfast consumers remove billing")
def remove_consumer(session: AnyTenant, result: None, name: str) -> None:
    session.answer({"name": name, "removed": True}, f"Removed consumer {name}.")


def send_event(
    session: OneTenant,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The event's name.")],
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="DATA", help="Data: JSON, @file, - for stdin, or name=value pairs."),
    ] = None,
    key: Annotated[str | None, Help("Idempotency key: sending it again creates no second event.", "TEXT")] = None,
    job: Annotated[str | None, Help("Send it only to this job.", "ID")] = None,
) -> None:
    """Send an application event to waiting jobs.

    Jobs that wait for the event resume; jobs that wait later find it. Prints the event's id. A value that is JSON (a
    number, a boolean, null, a list or an object) is read as JSON, everything else as text.
    """
    event_data, tenant = data_of(data or []), session.scope
    with closing(App(config.database_url(session.url), name=NAME, schema=session.schema)) as app:
        refuse_unready(session_of(app).store)
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
