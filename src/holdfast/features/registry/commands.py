"""``holdfast kinds``, ``event-types`` and ``policies``."""

from __future__ import annotations

from contextlib import closing
from itertools import groupby
from typing import Annotated, Any

import typer

from holdfast.cli.derived import derive
from holdfast.cli.options import parse_pairs
from holdfast.cli.output import counted, emit, heading, line, moment, print_document, print_fields, write
from holdfast.cli.session import AnyTenant, NoTenant, load_app
from holdfast.cli.tree import Commands
from holdfast.engine.declared import inputs_of
from holdfast.errors import InvalidSetting
from holdfast.features.registry.model import EventType, Policies, RegisteredKind, UnregisteredName
from holdfast.features.registry.operations import DeploymentPolicies, EventTypes, Kinds

kind_commands = Commands("Manage the registry of kinds.")
event_type_commands = Commands("Manage the registry of event types.")
policy_commands = Commands("Set the policies of the deployment.")


@derive(kind_commands, "list", NoTenant, Kinds.list, "holdfast kinds list --domain billing")
def list_kinds(session: NoTenant, result: list[RegisteredKind]) -> None:
    session.print_list(
        result,
        {
            "kind": lambda kind: line(kind.name),
            "domain": lambda kind: line(kind.domain or ""),
            "description": lambda kind: line(kind.description or ""),
            "set": lambda kind: f"{moment(kind.set_at)} by {line(kind.set_by)}",
        },
        none="No kind is registered.",
        keep=("kind",),
    )


@derive(kind_commands, "show", NoTenant, Kinds.get, "holdfast kinds show mail.send")
def show_kind(session: NoTenant, result: RegisteredKind) -> None:
    if session.as_json:
        emit(result)
    else:
        _print(result)


@kind_commands.add("register", "holdfast kinds register shop.jobs:app")
def register(
    session: NoTenant,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app whose kinds to register.")],
) -> None:
    """Register every kind that an app declares."""
    with closing(load_app(app, session.url)) as declared, session.connect() as client:
        kinds = {name: kind.registered for name, kind in declared._kinds.items()}
        changed = Kinds(client, lambda: kinds).register()
    session.answer(
        {"kinds": len(kinds), "changed": changed}, f"Registered {counted(len(kinds), 'kind')}, {changed:,} changed."
    )


@derive(
    kind_commands,
    "set",
    NoTenant,
    Kinds.set,
    "holdfast kinds set mail.send --domain marketing --description 'Send one message.'",
)
def set_kind(session: NoTenant, result: RegisteredKind) -> None:
    session.answer(result, f"Kind {result.name} is registered.")


@derive(event_type_commands, "list", NoTenant, EventTypes.list, "holdfast event-types list --domain billing")
def list_event_types(session: NoTenant, result: list[EventType]) -> None:
    session.print_list(
        result,
        {
            "event type": lambda event_type: line(event_type.name),
            "domain": lambda event_type: line(event_type.domain or ""),
            "schema": lambda event_type: "yes" if event_type.schema else "no",
            "description": lambda event_type: line(event_type.description or ""),
        },
        none="No event type is registered.",
        keep=("event type",),
    )


@derive(event_type_commands, "show", NoTenant, EventTypes.get, "holdfast event-types show order.paid")
def show_event_type(session: NoTenant, result: EventType) -> None:
    if session.as_json:
        emit(result)
        return
    _print(result)
    if result.schema is not None:
        print_document("Schema", result.schema)


@derive(
    event_type_commands,
    "set",
    NoTenant,
    EventTypes.set,
    "holdfast event-types set order.paid --domain billing",
    "holdfast event-types set order.paid --data-schema @order.json",
)
def set_event_type(session: NoTenant, result: EventType) -> None:
    session.answer(result, f"Event type {result.name} is registered.")


@derive(kind_commands, "remove", NoTenant, Kinds.remove, "holdfast kinds remove mail.send")
@derive(event_type_commands, "remove", NoTenant, EventTypes.remove, "holdfast event-types remove order.paid")
def print_removed(session: NoTenant, result: None, name: str) -> None:
    session.answer({"name": name, "removed": True}, "Removed.")


@derive(policy_commands, "show", NoTenant, DeploymentPolicies.get, "holdfast policies show")
def show_policies(session: NoTenant, result: Policies) -> None:
    if session.as_json:
        emit(result)
        return
    heading("Policies")
    print_fields([(name, _shown(getattr(result, name))) for name in Policies.__dataclass_fields__])


_POLICIES = "; ".join(
    f"{', '.join(each.name for each in alike)}: {values}"
    for values, alike in groupby(inputs_of(DeploymentPolicies.set.program), lambda each: each.help.metavar)
)


@policy_commands.add(
    "set",
    "holdfast policies set unknown_kinds=refuse unknown_agents=warn",
    "holdfast policies set empty_executors=nobody tenant_required=true",
    "holdfast policies set key_required=kind:pay,tenant:acme",
)
def set_policies(
    session: NoTenant,
    policies: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help=f"{_POLICIES}.")],
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
        show_policies(session, DeploymentPolicies(client).set(**changes))


@derive(
    policy_commands,
    "unregistered",
    AnyTenant,
    DeploymentPolicies.unregistered,
    "holdfast policies unregistered --all-tenants",
)
def unregistered(session: AnyTenant, result: list[UnregisteredName]) -> None:
    session.print_list(
        result,
        {
            "registry": lambda entry: entry.registry,
            "name": lambda entry: line(entry.name),
            **session.tenants,
            "first seen": lambda entry: moment(entry.first_at),
        },
        none="No unregistered names were accepted.",
    )


def _print(entry: RegisteredKind | EventType) -> None:
    write(entry.name)
    print_fields(
        [
            ("domain", entry.domain),
            ("description", entry.description),
            ("set", f"{moment(entry.set_at)} by {entry.set_by}"),
        ]
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else value
