"""``holdfast agents`` and ``holdfast executors``."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from holdfast.cli.derived import derive
from holdfast.cli.output import emit, line, moment, print_fields, span, write
from holdfast.cli.session import AnyTenant, NoTenant, OneTenant
from holdfast.cli.tree import Commands
from holdfast.engine.retry import PRESETS
from holdfast.engine.units import size_in_words
from holdfast.features.agents.model import WAITING_CAP, Agent, Executor
from holdfast.features.agents.operations import Agents, Executors

commands = Commands("Register, show, disable and enable agents.")


@derive(commands, "list", AnyTenant, Agents.list, "holdfast agents list --disabled")
def list_agents(session: AnyTenant, result: list[Agent]) -> None:
    session.print_list(
        result,
        {
            "id": lambda agent: line(agent.id),
            **session.tenants,
            "name": lambda agent: line(agent.name),
            "kind": lambda agent: line(agent.kind or ""),
            "state": lambda agent: _state(agent),
            "waiting": _waiting,
            "why": lambda agent: line(agent.disabled_reason or ""),
        },
        none="No matching agents.",
        keep=("id", "state", "waiting"),
    )


@derive(commands, "show", OneTenant, Agents.get, "holdfast agents show planner")
@derive(
    commands,
    "set",
    OneTenant,
    Agents.set,
    "holdfast agents set planner --kind plan --max-attempts 3 --backoff gentle",
    "holdfast agents set mailer --name 'The mailer' --max-payload 64KB --max-wait 1h",
)
@derive(commands, "disable", OneTenant, Agents.disable, "holdfast agents disable planner --reason 'it loops'")
@derive(commands, "enable", OneTenant, Agents.enable, "holdfast agents enable planner")
def print_agent(session: OneTenant, result: Agent) -> None:
    _print(result, session.as_json)


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


@derive(executor_commands, "list", NoTenant, Executors.list, "holdfast executors list")
def list_executors(session: NoTenant, result: list[Executor]) -> None:
    session.print_list(
        result,
        {
            "label": lambda executor: line(executor.label),
            "role": lambda executor: executor.role,
            "added by": lambda executor: line(executor.added_by),
            "added": lambda executor: moment(executor.added_at),
        },
        none="The list is empty: every label may execute, unless the policy empty_executors is nobody.",
    )


@derive(
    executor_commands,
    "set",
    NoTenant,
    Executors.set,
    "holdfast executors set gpu",
    "holdfast executors set planner --role generator",
)
def set_executor(session: NoTenant, result: Executor) -> None:
    session.answer(result, f"{result.label} is on the list, as {result.role}.")


@derive(executor_commands, "remove", NoTenant, Executors.remove, "holdfast executors remove gpu")
def remove_executor(session: NoTenant, result: None, label: str) -> None:
    session.answer({"label": label, "removed": True}, f"{label} is off the list.")
