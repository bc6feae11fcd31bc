"""Attacks on the registry of agents (CX-16): jobs that an agent does not accept, and invalid rows."""

from __future__ import annotations

from tests.attacks.attack import NOW, Table

# The database has two agents: one is disabled, the other restricts kind, payload and wait.
REGISTERED = (
    "insert into agent (tenant, id, name, disabled_at, disabled_by, disabled_reason, created_at, updated_at)"
    f" values ('default', 'shut', 'Shut', {NOW}, 'ada', 'it loops', {NOW}, {NOW})",
    "insert into agent (tenant, id, name, kind, max_payload_bytes, max_wait, created_at, updated_at)"
    f" values ('default', 'narrow', 'Narrow', 'plan', 20, 60, {NOW}, {NOW})",
)

_JOB = "insert into job (id, tenant, kind, agent, payload, deadline_at)"
_AGENT = "insert into agent (tenant, id, name, created_at, updated_at"

AGENTS: Table = {
    "enqueue for a disabled agent": (
        f"{_JOB} values (:unknown, 'default', 'plan', 'shut', '{{}}', null)",
        ("agent disabled: it accepts no jobs", "agent shut was disabled by ada on"),
    ),
    "enqueue a kind the agent does not run": (
        f"{_JOB} values (:unknown, 'default', 'mail.send', 'narrow', '{{}}', {NOW})",
        ("agent kind mismatch", "agent narrow runs jobs of kind plan, not mail.send"),
    ),
    "enqueue a payload over the agent's limit": (
        f"{_JOB} values (:unknown, 'default', 'plan', 'narrow', '{{\"to\": \"a very long one\"}}', {NOW})",
        ("agent payload limit", "agent narrow takes payloads of up to 20 bytes, and this one has 25"),
    ),
    "enqueue for an agent without the deadline it requires": (
        f"{_JOB} values (:unknown, 'default', 'plan', 'narrow', '{{}}', null)",
        ("agent wait limit", "a job of agent narrow may wait 60 s, and needs a deadline that says so"),
    ),
    "change the agent of a job": (
        "update job_state set agent = 'nobody' where id = :queued",
        (
            "number, id, tenant, kind, agent, executor and crash limit",
            "id, tenant, kind, agent, executor and crash limit",
        ),
    ),
    "delete an agent": ("delete from agent where id = 'shut'", "agents cannot be deleted; disable the agent instead"),
    "truncate the agents": ("truncate agent", (None, "agents cannot be deleted; disable the agent instead")),
    "change the id of an agent": (
        "update agent set id = 'open' where id = 'shut'",
        "agent: tenant, id, created_at cannot change",
    ),
    "disable an agent without a reason": (
        f"update agent set disabled_at = {NOW}, disabled_by = 'ada' where id = 'narrow'",
        "disabled_for_what",
    ),
    "disable an agent without an actor": (
        f"update agent set disabled_at = {NOW}, disabled_reason = 'x' where id = 'narrow'",
        "disabled_by_whom",
    ),
    "disable an agent with a blank reason": (
        f"update agent set disabled_at = {NOW}, disabled_by = 'ada', disabled_reason = '  ' where id = 'narrow'",
        "reason_given",
    ),
    "register an agent for every tenant": (f"{_AGENT}) values ('*', 'new', 'New', {NOW}, {NOW})", "tenant_named"),
    "register an agent without an id": (f"{_AGENT}) values ('default', ' ', 'New', {NOW}, {NOW})", "id_named"),
    "register an agent without a name": (f"{_AGENT}) values ('default', 'x', '', {NOW}, {NOW})", "name_named"),
    **{
        f"register an agent with {what}": (
            f"{_AGENT}, {column}) values ('default', 'new', 'New', {NOW}, {NOW}, {value})",
            says,
        )
        for what, column, value, says in (
            ("a blank kind", "kind", "' '", "kind_named"),
            ("101 retries", "max_attempts", "102", "attempts_bounded"),
            ("a negative number of crashes", "max_crashes", "-1", "crashes_bounded"),
            ("a backoff that is not an object", "backoff", "'[1]'", "backoff_is_object"),
            ("a payload limit of zero", "max_payload_bytes", "0", "payload_bounded"),
            ("a wait limit of zero", "max_wait", "0", "wait_bounded"),
        )
    },
}
