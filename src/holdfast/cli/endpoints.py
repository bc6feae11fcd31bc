"""``holdfast endpoints …``: who is told of events by webhooks, and what became of the messages."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import options
from holdfast.cli.output import Cell, emit, facts, line, say, table, write
from holdfast.cli.session import connect, scope
from holdfast.cli.words import moment
from holdfast.domain.endpoints import NOTICES, Endpoint, EndpointDelivery
from holdfast.domain.job import EVERY_TENANT
from holdfast.domain.subscriptions import JobOptions
from holdfast.features.endpoints import Changes, Endpoints, Looking
from holdfast.webhooks import new_secret

Name = Annotated[str, typer.Argument(metavar="NAME", help="The endpoint's name.")]
Wants = Annotated[
    list[str] | None,
    typer.Option("--on", metavar="EVENT", help=f"What it is told, again and again: {', '.join(NOTICES)}, order.*"),
]
OfKind = Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only of jobs of this kind; * is anything.")]
OfQueue = Annotated[
    str | None, typer.Option("--of-queue", metavar="NAME", help="Only of jobs that were enqueued there.")
]
Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="The queue of its deliveries.")]
Secret = Annotated[
    list[str], typer.Option("--secret", metavar="VARIABLE", help="The name of a secret, the newest first; not itself.")
]


def list_endpoints(
    url: options.Url = None,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List the endpoints: where webhooks go, and what each is told."""
    whose = scope(tenant, all_tenants)
    with connect(url, whose, schema) as client:
        found = Endpoints(client).list()
    if as_json:
        emit([each.described() for each in found])
    elif not found:
        say("There are no endpoints.")
    else:
        with_tenant = whose == EVERY_TENANT
        rows: list[list[Cell]] = [
            [
                line(each.name),
                *([line(each.tenant)] if with_tenant else []),
                line(each.shown_url),
                line(", ".join(each.wants)),
                _state(each),
            ]
            for each in found
        ]
        table(["name", *(["tenant"] if with_tenant else []), "url", "told", "state"], rows, keep=("name", "state"))


def show(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Show an endpoint, and the last attempts to deliver something to it."""
    with connect(url, scope(tenant), schema) as client:
        feature = Endpoints(client)
        found, log = feature.show(name), feature.deliveries(name, limit=10)
    if as_json:
        emit(found.described() | {"deliveries": [each.described() for each in log]})
        return
    _print(found)
    if log:
        _attempts(log)


def add(
    name: Name,
    to: Annotated[str, typer.Argument(metavar="URL", help="Where messages are posted to.")],
    secret: Secret,
    wants: Wants = None,
    kind: OfKind = None,
    of_queue: OfQueue = None,
    queue: Queue = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Tell a URL of events from now on, with signed messages (Standard Webhooks)."""
    how = JobOptions() if queue is None else JobOptions(queue=queue)
    if of_queue is not None:
        how["of_queue"] = of_queue
    with connect(url, scope(tenant), schema) as client:
        _told(Endpoints(client).add(name, to, secrets=secret, wants=wants or None, kind=kind, **how), as_json)


def change(
    name: Name,
    to: Annotated[str | None, typer.Option("--to", metavar="URL", help="Where messages are posted to.")] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="VARIABLE", help="Names of secrets, the newest first, instead of those."),
    ] = None,
    wants: Wants = None,
    kind: OfKind = None,
    of_queue: OfQueue = None,
    queue: Queue = None,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Give an endpoint another URL, other secrets, another queue, or have it told of something else."""
    how = {name: value for name, value in (("queue", queue), ("of_queue", of_queue)) if value is not None}
    given = {"url": to, "secrets": secret or None, "wants": wants or None, "kind": kind, "options": how or None}
    changes = Changes(**{key: value for key, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    with connect(url, scope(tenant), schema) as client:
        _told(Endpoints(client).change(name, **changes), as_json)


def rotate(
    name: Name,
    secret: Annotated[str, typer.Argument(metavar="VARIABLE", help="The name of the new secret.")],
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=0, max=4, help="How many of the old ones still sign.")
    ] = 1,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Sign with a new secret as well as with the last one; with --keep 0 with the new one alone."""
    with connect(url, scope(tenant), schema) as client:
        _told(Endpoints(client).rotate(name, secret, keep=keep), as_json)


def disable(
    name: Name,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")],
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Tell it nothing more; what happens meanwhile is kept for when it is enabled."""
    with connect(url, scope(tenant), schema) as client:
        _told(Endpoints(client).disable(name, reason=reason), as_json)


def enable(
    name: Name,
    skip: Annotated[bool, typer.Option("--skip", help="Without what happened meanwhile.")] = False,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Go on, with what happened meanwhile."""
    with connect(url, scope(tenant), schema) as client:
        _told(Endpoints(client).enable(name, skip=skip), as_json)


def remove(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Remove an endpoint and the log of its deliveries."""
    with connect(url, scope(tenant), schema) as client:
        Endpoints(client).remove(name)
    if as_json:
        emit({"name": name, "removed": True})
    else:
        say(f"{name} is gone.")


def ping(
    name: Name,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Send it a ping. A worker delivers it; `holdfast endpoints deliveries` shows how that went."""
    with connect(url, scope(tenant), schema) as client:
        _enqueued(Endpoints(client).test(name), as_json)


def deliveries(
    name: Name,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    message: Annotated[str | None, typer.Option("--message", metavar="ID", help="Only of this message.")] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Those before the attempt of this id: the next page.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=200, help="How many at most.")] = 50,
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """List attempts to deliver messages to an endpoint, the newest first."""
    wanted = Looking(failed=failed, limit=limit)
    if message is not None:
        wanted["message"] = message
    if before is not None:
        wanted["before"] = before
    with connect(url, scope(tenant), schema) as client:
        found = Endpoints(client).deliveries(name, **wanted)
    if as_json:
        emit([each.described() for each in found])
    elif not found:
        say("Nothing was sent.")
    else:
        _attempts(found)


def resend(
    name: Name,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The message's id: msg_….")],
    url: options.Url = None,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    as_json: options.Json = False,
) -> None:
    """Send a message once more, the same under the same id."""
    with connect(url, scope(tenant), schema) as client:
        _enqueued(Endpoints(client).resend(name, message), as_json)


def secret(as_json: options.Json = False) -> None:
    """Make a secret to sign with. It is printed once, and stored nowhere: put it where workers and receiver find it."""
    made = new_secret()
    if as_json:
        emit({"secret": made})
    else:
        write(made)


def _enqueued(job: str, as_json: bool) -> None:
    if as_json:
        emit({"job_id": job})
    else:
        write(job)


def _told(found: Endpoint, as_json: bool) -> None:
    if as_json:
        emit(found.described())
    else:
        _print(found)


def _state(each: Endpoint) -> Text:
    return Text("enabled", "green") if each.enabled else Text("disabled", "bold red")


def _print(found: Endpoint) -> None:
    disabled = None
    if found.disabled_at is not None:
        disabled = f"since {moment(found.disabled_at)} by {found.disabled_by}: {found.disabled_reason}"
    write(found.name)
    facts(
        [
            ("state", _state(found)),
            ("disabled", disabled),
            ("tenant", found.tenant),
            ("url", found.shown_url),
            ("told", ", ".join(found.wants)),
            ("of kind", found.kind),
            ("of queue", found.job_options.get("of_queue")),
            ("secrets", ", ".join(found.secrets)),
            ("created", f"{moment(found.created_at)} by {found.created_by}"),
        ]
    )


def _attempts(found: list[EndpointDelivery]) -> None:
    rows: list[list[Cell]] = [
        [
            moment(each.at) if each.at else "",
            line(each.type),
            line(each.message),
            str(each.attempt),
            "" if each.status is None else str(each.status),
            Text("delivered", "green") if each.delivered else Text(line(each.error_code or ""), "red"),
            f"{each.duration_ms:,} ms",
        ]
        for each in found
    ]
    table(("at", "type", "message", "attempt", "status", "what became of it", "took"), rows, keep=("message", "status"))
