"""``holdfast kinds``, ``event-types`` and ``policies``."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from holdfast.cli.options import document, parse_pairs
from holdfast.cli.output import emit, heading, line, moment, print_document, print_fields, write
from holdfast.cli.session import AnyTenant, NoTenant, load_app
from holdfast.cli.tree import Commands
from holdfast.errors import InvalidSetting
from holdfast.features.registry.model import EventType, Policies
from holdfast.features.registry.operations import DeploymentPolicies, EventTypes, Kinds

kind_commands = Commands("Manage the registry of kinds.")
event_type_commands = Commands("Manage the registry of event types.")
policy_commands = Commands("Set the policies of the deployment.")

KindName = Annotated[str, typer.Argument(metavar="KIND", help="Name of the kind.")]
TypeName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the event type: order.paid.")]
Domain = Annotated[str | None, typer.Option("--domain", metavar="NAME", help="The domain that it belongs to.")]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is for.")]


@kind_commands.add("list", "holdfast kinds list --domain billing")
def list_kinds(
    session: NoTenant,
    domain: Annotated[str | None, typer.Option("--domain", metavar="NAME", help="Only kinds of this domain.")] = None,
) -> None:
    """List the registered kinds. Built-in kinds need no registration."""
    with session.connect() as client:
        kinds = Kinds(client).list(domain=domain)
    session.print_list(
        kinds,
        {
            "kind": lambda kind: line(kind.name),
            "domain": lambda kind: line(kind.domain or ""),
            "description": lambda kind: line(kind.description or ""),
            "set": lambda kind: f"{moment(kind.set_at)} by {line(kind.set_by)}",
        },
        none="No kind is registered.",
        keep=("kind",),
    )


@kind_commands.add("show", "holdfast kinds show mail.send")
def show_kind(session: NoTenant, name: KindName) -> None:
    """Show one registered kind."""
    with session.connect() as client:
        kind = Kinds(client).get(name)
    if session.as_json:
        emit(kind)
        return
    write(kind.name)
    print_fields(
        [
            ("domain", kind.domain),
            ("description", kind.description),
            ("set", f"{moment(kind.set_at)} by {kind.set_by}"),
        ]
    )


@kind_commands.add("register", "holdfast kinds register shop.jobs:app")
def register(
    session: NoTenant,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app whose kinds to register.")],
) -> None:
    """Register every kind that an app declares."""
    with closing(load_app(app, session.url)) as declared, session.connect() as client:
        kinds = {name: kind.registered for name, kind in declared._kinds.items()}
        changed = Kinds(client, lambda: kinds).register()
    session.answer({"kinds": len(kinds), "changed": changed}, f"{len(kinds)} kinds are registered, {changed} changed.")


@kind_commands.add("add", "holdfast kinds add mail.send --domain marketing --description 'Send one message.'")
def add_kind(session: NoTenant, name: KindName, domain: Domain = None, description: Description = None) -> None:
    """Register one kind, or replace its description and domain."""
    with session.connect() as client:
        added = Kinds(client).set(name, description, domain=domain)
    session.answer(added, f"Kind {name} is registered.")


@kind_commands.add("remove", "holdfast kinds remove mail.send")
def remove_kind(session: NoTenant, name: KindName) -> None:
    """Remove a kind from the registry. Its jobs stay."""
    with session.connect() as client:
        Kinds(client).remove(name)
    session.answer({"name": name, "removed": True}, "Removed.")


@event_type_commands.add("list", "holdfast event-types list --domain billing")
def list_event_types(
    session: NoTenant,
    domain: Annotated[str | None, typer.Option("--domain", metavar="NAME", help="Only types of this domain.")] = None,
) -> None:
    """List the registered event types."""
    with session.connect() as client:
        types = EventTypes(client).list(domain=domain)
    session.print_list(
        types,
        {
            "event type": lambda event_type: line(event_type.name),
            "domain": lambda event_type: line(event_type.domain or ""),
            "schema": lambda event_type: "yes" if event_type.schema else "no",
            "description": lambda event_type: line(event_type.description or ""),
        },
        none="No event type is registered.",
        keep=("event type",),
    )


@event_type_commands.add("show", "holdfast event-types show order.paid")
def show_event_type(session: NoTenant, name: TypeName) -> None:
    """Show one registered event type with its schema."""
    with session.connect() as client:
        event_type = EventTypes(client).get(name)
    _print_type(event_type, session.as_json)


@event_type_commands.add(
    "add",
    "holdfast event-types add order.paid --domain billing",
    "holdfast event-types add order.paid --data-schema @order.json",
)
def add_event_type(
    session: NoTenant,
    name: TypeName,
    domain: Domain = None,
    data_schema: Annotated[
        str | None,
        typer.Option("--data-schema", metavar="JSON", help="JSON Schema of its data: JSON, @file or -."),
    ] = None,
    description: Description = None,
) -> None:
    """Register an event type, or replace it."""
    json_schema: Any = None if data_schema is None else document(data_schema)
    with session.connect() as client:
        added = EventTypes(client).set(name, domain=domain, schema=json_schema, description=description)
    session.answer(added, f"Event type {name} is registered.")


@event_type_commands.add("remove", "holdfast event-types remove order.paid")
def remove_event_type(session: NoTenant, name: TypeName) -> None:
    """Remove an event type from the registry. Events that were sent stay."""
    with session.connect() as client:
        EventTypes(client).remove(name)
    session.answer({"name": name, "removed": True}, "Removed.")


@policy_commands.add("show", "holdfast policies show")
def show_policies(session: NoTenant) -> None:
    """Show the policies of the deployment."""
    with session.connect() as client:
        policies = DeploymentPolicies(client).get()
    _print_policies(policies, session.as_json)


@policy_commands.add(
    "set",
    "holdfast policies set unknown_kinds=refuse unknown_agents=warn",
    "holdfast policies set empty_executors=nobody tenant_required=true",
    "holdfast policies set key_required=kind:pay,tenant:acme",
)
def set_policies(
    session: NoTenant,
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="unknown_kinds, unknown_agents, unknown_event_types: accept, warn or refuse; empty_executors: everyone"
            " or nobody; tenant_required, pending_includes_running: true or false; key_required, executor_required,"
            " agent_required: *, or tenants and kinds (tenant:acme,kind:pay), or nothing.",
        ),
    ],
) -> None:
    """Change policies. They apply to what is enqueued, sent or claimed from now on."""
    booleans = {"true": True, "false": False}
    lists = ("key_required", "executor_required", "agent_required")
    changes: Any = {
        name: [part for part in value.split(",") if part] if name in lists else booleans.get(value, value)
        for name, value in parse_pairs(policies).items()
    }
    if not changes:
        raise InvalidSetting("name a policy and its value: unknown_kinds=refuse", code="invalid_policy")
    with session.connect() as client:
        result = DeploymentPolicies(client).set(**changes)
    _print_policies(result, session.as_json)


@policy_commands.add("unregistered", "holdfast policies unregistered --all-tenants")
def unregistered(session: AnyTenant) -> None:
    """List kinds, agents and event types that were accepted with a warning."""
    with session.connect() as client:
        names = DeploymentPolicies(client).unregistered()
    session.print_list(
        names,
        {
            "registry": lambda entry: entry.registry,
            "name": lambda entry: line(entry.name),
            **session.tenants,
            "first seen": lambda entry: moment(entry.first_at),
        },
        none="No unregistered names were accepted.",
    )


def _print_type(event_type: EventType, as_json: bool) -> None:
    if as_json:
        emit(event_type)
        return
    write(event_type.name)
    print_fields(
        [
            ("domain", event_type.domain),
            ("description", event_type.description),
            ("set", f"{moment(event_type.set_at)} by {event_type.set_by}"),
        ]
    )
    if event_type.schema is not None:
        print_document("Schema", event_type.schema)


def _print_policies(policies: Policies, as_json: bool) -> None:
    if as_json:
        emit(policies)
        return
    heading("Policies")
    values = {name: getattr(policies, name) for name in Policies.__dataclass_fields__}
    print_fields([(name, _shown(value)) for name, value in values.items()])


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else value
