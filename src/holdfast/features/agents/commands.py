"""``holdfast agents`` and ``holdfast executors``."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from holdfast.cli.output import duration, emit, line, moment, print_fields, span, write
from holdfast.cli.session import AnyTenant, NoTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.engine.retry import PRESETS, attempt_limit, preset
from holdfast.engine.units import size_in_words
from holdfast.features.agents.model import WAITING_CAP, Agent, Definition
from holdfast.features.agents.operations import Agents, Executors

commands = Commands("Register, show, disable and enable agents.")

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent's id, which jobs refer to.")]
Preset = StrEnum("Preset", {name.upper(): name for name in PRESETS})  # type: ignore[misc]


@commands.add("list", "holdfast agents list --disabled")
def list_agents(
    session: AnyTenant,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only agents for this kind.")] = None,
    disabled: Annotated[
        bool | None, typer.Option("--disabled/--enabled", help="Only disabled agents, or only enabled ones.")
    ] = None,
) -> None:
    """List the registered agents."""
    with session.connect() as client:
        agents = Agents(client).list(kind=kind, disabled=disabled)
    session.print_list(
        agents,
        {
            "id": lambda agent: line(agent.id),
            **session.tenants,
            "name": lambda agent: line(agent.name),
            "kind": lambda agent: line(agent.kind or ""),
            "state": lambda agent: _state(agent),
            "waiting": _waiting,
            "why": lambda agent: line(agent.disabled_reason or ""),
        },
        none="There are no such agents.",
        keep=("id", "state", "waiting"),
    )


@commands.add("show", "holdfast agents show planner")
def show(session: OneTenant, agent: AgentId) -> None:
    """Show an agent: its settings, its limits and whether it is disabled."""
    with session.connect() as client:
        result = Agents(client).get(agent)
    _print(result, session.as_json)


@commands.add(
    "register",
    "holdfast agents register planner --kind plan --max-attempts 3 --backoff gentle",
    "holdfast agents register mailer --name 'The mailer' --max-payload 64KB --max-wait 1h",
)
def register(
    session: OneTenant,
    agent: AgentId,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="Display name.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Accept only jobs of this kind.")] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", metavar="N", min=1, max=101, help="Maximum attempts of a job; default: the kind's."
        ),
    ] = None,
    max_crashes: Annotated[
        int | None,
        typer.Option(
            "--max-crashes", metavar="N", min=0, max=100, help="Maximum crashes of a job; default: the kind's."
        ),
    ] = None,
    backoff: Annotated[
        Preset | None,
        typer.Option("--backoff", metavar="PRESET", help=f"Retry backoff: {', '.join(PRESETS)}; default: the kind's."),
    ] = None,
    max_payload: Annotated[
        str | None, typer.Option("--max-payload", metavar="SIZE", help="Maximum payload size: 500, 64KB.")
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option("--max-wait", metavar="SPAN", help="Maximum time a job may wait before it starts: 90, 5m."),
    ] = None,
    requires_approval: Annotated[
        bool, typer.Option("--requires-approval", help="Require a person's approval before its jobs run.")
    ] = False,
) -> None:
    """Register or redefine an agent. Options that are not given return to their defaults."""
    definition = Definition.of(
        agent,
        name=name,
        kind=kind,
        max_payload=max_payload,
        max_wait=None if max_wait is None else duration(max_wait, "--max-wait"),
        requires_approval=requires_approval,
    )
    definition = dataclasses.replace(
        definition,
        max_attempts=attempt_limit(max_attempts),
        max_crashes=max_crashes,
        backoff=None if backoff is None else preset(backoff),
    )
    with session.connect() as client:
        _print(client.run(client.store.agents.set(definition, client.tenant, client.actor)), session.as_json)


@commands.add("disable", "holdfast agents disable planner --reason 'it loops'")
def disable(
    session: OneTenant,
    agent: AgentId,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, shown to callers whose job is refused.")
    ],
) -> None:
    """Disable an agent: refuse new jobs for it and do not start waiting ones."""
    with session.connect() as client:
        _print(Agents(client).disable(agent, reason=reason), session.as_json)


@commands.add("enable", "holdfast agents enable planner")
def enable(session: OneTenant, agent: AgentId) -> None:
    """Enable an agent again; its waiting jobs can start."""
    with session.connect() as client:
        _print(Agents(client).enable(agent), session.as_json)


def _state(agent: Agent) -> Text:
    return Text("disabled", "bold red") if agent.disabled else Text("enabled", "green")


def _print(agent: Agent, as_json: bool) -> None:
    if as_json:
        emit(agent)
        return
    write(f"{agent.name}  {agent.id}" if agent.name != agent.id else agent.id)
    print_fields(
        [
            ("state", _state(agent)),
            ("disabled", disabled_since(agent)),
            ("tenant", agent.tenant),
            ("kind", agent.kind),
            ("waiting", _waiting(agent)),
            ("attempts", None if agent.max_attempts is None else str(agent.max_attempts)),
            ("lost workers", None if agent.max_crashes is None else str(agent.max_crashes)),
            ("backoff", _backoff(agent.backoff)),
            ("payloads up to", None if agent.max_payload_bytes is None else size_in_words(agent.max_payload_bytes)),
            ("may wait", None if agent.max_wait is None else span(agent.max_wait)),
            ("needs approval", "yes" if agent.requires_approval else None),
            ("registered", moment(agent.created_at)),
            ("changed", moment(agent.updated_at)),
        ]
    )


def disabled_since(agent: Agent | None) -> str | None:
    """``since 2027-01-31 09:00:00.000 by ada: it loops``"""
    if agent is None or agent.disabled_at is None:
        return None
    return f"since {moment(agent.disabled_at)} by {agent.disabled_by}: {agent.disabled_reason}"


def _backoff(backoff: dict[str, Any] | None) -> str | None:
    if backoff is None:
        return None
    return next((name for name, known in PRESETS.items() if known.to_json() == backoff), json.dumps(backoff))


def _waiting(agent: Agent) -> str:
    return f"{agent.waiting:,}" + ("+" if agent.waiting >= WAITING_CAP else "")


executor_commands = Commands("Manage the allowlist of executor labels.")

Label = Annotated[str, typer.Argument(metavar="LABEL", help="The label a worker passes as --executor.")]


@executor_commands.add("list", "holdfast executors list")
def list_executors(session: NoTenant) -> None:
    """List the allowed executor labels.

    While the list is empty, every label may run jobs, or none: holdfast policies set empty_executors=nobody
    """
    with session.connect() as client:
        executors = Executors(client).list()
    session.print_list(
        executors,
        {
            "label": lambda executor: line(executor.label),
            "role": lambda executor: executor.role,
            "added by": lambda executor: line(executor.added_by),
            "added": lambda executor: moment(executor.added_at),
        },
        none="The list is empty: every label may execute, unless the policy empty_executors is nobody.",
    )


@executor_commands.add(
    "add",
    "holdfast executors add gpu",
    "holdfast executors add planner --generator",
)
def add(
    session: NoTenant,
    label: Label,
    generator: Annotated[
        bool, typer.Option("--generator", help="The label may plan jobs but never execute them.")
    ] = False,
) -> None:
    """Add a label to the allowlist. As soon as it has one label, only listed executors may run jobs."""
    with session.connect() as client:
        added = Executors(client).set(label, "generator" if generator else "executor")
    session.answer(added, f"{label} is on the list, as {added.role}.")


@executor_commands.add("remove", "holdfast executors remove gpu")
def remove(session: NoTenant, label: Label) -> None:
    """Remove a label. Its running jobs may finish; it can claim no more."""
    with session.connect() as client:
        Executors(client).remove(label)
    session.answer({"label": label, "removed": True}, f"{label} is off the list.")
