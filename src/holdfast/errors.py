"""Every error that Holdfast raises, each with a stable code.

    HoldfastError
    ├── InvalidInput            the request is wrong; nothing was stored
    │   ├── InvalidPayload      not JSON, too large, too deep
    │   ├── InvalidArguments    do not fit the handler's signature
    │   └── InvalidSetting      a bad URL, policy, name or option
    ├── Refused                 the request is valid, but a rule or the state of the data forbids it
    │   ├── NotFound            no such job in this tenant
    │   ├── Conflict            another state, or another payload under the same key
    │   ├── StaleLease          the lease is not, or no longer, the one that claims the job
    │   ├── IllegalTransition   the database refused a change of state that is not legal
    │   └── EventsGone          retention has removed events that a consumer had not read
    ├── JobFailed               raised by ``result()`` of a job that did not succeed
    ├── WaitTimeout             the job had not ended in time; it continues
    ├── StepsChanged            the handler's steps differ from those that the job has completed
    ├── StepFailed              a step failed in an earlier attempt, with an error type that cannot be restored
    ├── EventTimeout            the event that a handler waits for did not arrive in time
    ├── EgressError             an outgoing HTTP request got no usable response
    │   ├── EgressRefused       the egress policy forbids the address; a retry does not help
    │   ├── EgressTimeout       no response in time
    │   ├── EgressTooLarge      the response is larger than the limit
    │   └── EgressUnreachable   DNS, connection or TLS failed, or the connection broke
    └── StoreError              the database could not be used
        ├── StoreUnavailable    cannot connect, connection lost, disk full
        └── SchemaMismatch      not migrated, or migrated by a newer release

A code is part of the public interface: it is stored in the ledger, printed by the command line and matched by other
programs. Codes are never renamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final

__all__ = [
    "Conflict",
    "EgressError",
    "EgressRefused",
    "EgressTimeout",
    "EgressTooLarge",
    "EgressUnreachable",
    "EventTimeout",
    "EventsGone",
    "HoldfastError",
    "IllegalTransition",
    "InvalidArguments",
    "InvalidInput",
    "InvalidPayload",
    "InvalidSetting",
    "JobFailed",
    "NotFound",
    "Refused",
    "SchemaMismatch",
    "StaleLease",
    "StepFailed",
    "StepsChanged",
    "StoreError",
    "StoreUnavailable",
    "WaitTimeout",
]


# The default fix for each code, for errors that are raised without a specific one.
FIXES: Final = {
    "error": "Read the message. If it does not help, report it with the code.",
    "invalid_input": "Correct the value named in the message and try again.",
    "invalid_payload": "Pass JSON: objects with text keys, lists, text, numbers, true, false and null.",
    "payload_not_json": "Pass text, numbers, lists and dicts; the id of a database object. With pydantic, annotate the "
    "parameter with its type: when: datetime.",
    "payload_not_finite": "Pass null, or text.",
    "payload_bad_number": "Pass it as text.",
    "payload_bad_key": "Convert the key to text.",
    "payload_too_deep": "Flatten it.",
    "payload_too_large": "Keep the data elsewhere and pass a reference, or use the artifact store: "
    "see docs/guides/payloads.md.",
    "invalid_arguments": "Pass the arguments of the handler's signature.",
    "invalid_setting": "Correct the setting named in the message.",
    "refused": "Change the request, or the rule named in the message.",
    "not_found": "Check the id and the tenant.",
    "conflict": "Read the current state and decide again.",
    "stale_lease": "Stop working on the job: another worker has claimed it. This result was not recorded.",
    "illegal_transition": "Read the job's state first. docs/reference/states.md lists the legal transitions.",
    "events_gone": "Read the current state again and follow from this error's cursor.",
    "job_failed": "Read the reason: holdfast jobs show <id>.",
    "wait_timeout": "Wait longer, or read the result later. The job continues.",
    "steps_changed": "Keep the order and names of steps that running jobs have completed, or guard the change "
    "with ctx.patched.",
    "question_changed": "Ask the same question and redrive the job, or ask for another decision: "
    "holdfast jobs redrive ID --from-step N. Take values that vary from a step before the approval.",
    "approval_not_asked": "Deploy code that asks for the approval, or keep old jobs on the old path with "
    "ctx.patched; then redrive the job.",
    "step_failed": "Read the step's error: holdfast jobs show <id>.",
    "event_timeout": "Send the event in time, or use a longer timeout.",
    "egress_failed": "Try again. If it fails again, check the server.",
    "egress_refused": "Allow the address in the egress policy if jobs may reach it.",
    "egress_timeout": "Try again later, or allow more time.",
    "egress_too_large": "Request less data, or raise the limit.",
    "egress_unreachable": "Check the name, the port and the certificate; try again later.",
    "store_error": "Run holdfast doctor. If it finds nothing, report the message.",
    "store_unavailable": "Check that the database runs and that its URL is right (holdfast doctor). Workers retry.",
    "login_refused": "Check the user and the password in the database URL, and that this role may log in.",
    "store_read_only": "Connect to the primary server, or make it writable.",
    "schema_mismatch": "Run: holdfast migrate",
    "disk_full": "Free space on the database's disk. Workers continue on their own.",
    "database_locked": "Stop the program that locks the file, or wait until it has finished.",
    "not_a_database": "Check the path; if it is right, restore the file from a backup.",
    "no_wal": "Put the file on a local disk: network file systems and some containers have no shared memory.",
    "migration_failed": "Read the database's message. If another program has tables there, use another schema or file.",
    "artifacts_away": "Check that the folder or bucket exists and that this user may write to it.",
    "redirected": "Use the address of the redirect.",
    "tenant_full": "Enqueue again later, or raise the limit: holdfast tenants set NAME --max-pending N",
    "kind_unregistered": "Register it: holdfast kinds set NAME; or all of an app: holdfast kinds register MODULE:APP",
    "agent_unregistered": "Register it: holdfast agents set NAME",
    "event_type_unregistered": "Register it: holdfast event-types set NAME",
    "event_data_invalid": "Send data that fits the schema: holdfast event-types show NAME",
    "key_required": "Pass an idempotency key: using(key=…), --key.",
    "executor_required": "Name an executor: using(executor=…), --executor.",
    "agent_required": "Name an agent: using(agent=…), --agent.",
    "tenant_required": "Name a tenant: App(tenant=…), using(tenant=…), --tenant. The tenant `default` stands for none.",
    "sealing_blocked": "End that transaction: select pg_terminate_backend(<process>).",
}


class HoldfastError(Exception):
    """The base class of all errors: a stable ``code``, a ``message``, and a ``fix`` that tells what to do about it."""

    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.fix = fix or FIXES.get(self.code)

    def __str__(self) -> str:
        text = f"{self.message} [{self.code}]"
        return f"{text} {self.fix}" if self.fix else text


class InvalidInput(HoldfastError):
    """The request is wrong. Nothing was stored."""

    default_code = "invalid_input"


class InvalidPayload(InvalidInput):
    """A payload or result is not JSON, too large, or nested too deeply."""

    default_code = "invalid_payload"


class InvalidArguments(InvalidInput):
    """The arguments do not fit the handler's signature."""

    default_code = "invalid_arguments"


class InvalidSetting(InvalidInput):
    """A URL, policy, name or option is invalid."""

    default_code = "invalid_setting"


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Around imports: raise an error with the command that installs the extra if a library is missing."""
    try:
        yield
    except ImportError as missing:
        if (missing.name or "").startswith("holdfast"):
            raise
        raise InvalidSetting(
            f"{what} needs an extra that is not installed ({missing.name or missing})",
            code="missing_extra",
            fix=f"pip install 'holdfast[{extra}]'",
        ) from missing


class Refused(HoldfastError):
    """The request is valid, but a rule or the state of the data forbids it."""

    default_code = "refused"


class NotFound(Refused):
    """The tenant has no such job, schedule or other object."""

    default_code = "not_found"


class Conflict(Refused):
    """The object is in another state, or another payload is stored under the same idempotency key."""

    default_code = "conflict"


class StaleLease(Refused):
    """The lease does not claim the job, or no longer does. The change was not recorded."""

    default_code = "stale_lease"


class IllegalTransition(Refused):
    """The database refused a change of state that is not legal."""

    default_code = "illegal_transition"


class EventsGone(Refused):
    """Retention has removed events that a consumer had not read.

    ``through`` is the number of the last missing event. ``cursor`` is the end of the ledger when the gap was noticed: a
    consumer that reads the current state and then follows from ``cursor`` misses nothing more.
    """

    default_code = "events_gone"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        fix: str | None = None,
        cursor: str | None = None,
        through: int | None = None,
    ) -> None:
        super().__init__(message, code=code, fix=fix)
        self.cursor = cursor
        self.through = through


class JobFailed(HoldfastError):
    """Raised by ``Handle.result`` when the job ended without success."""

    default_code = "job_failed"


class WaitTimeout(HoldfastError):
    """The job had not ended when the time to wait was over. The job continues."""

    default_code = "wait_timeout"


class StepsChanged(HoldfastError):
    """The handler's steps differ from those that the job has completed."""

    default_code = "steps_changed"

    steps: tuple[dict[str, Any], ...] = ()
    """The recorded calls and those that the handler has made, by number."""


class StepFailed(HoldfastError):
    """A step failed in an earlier attempt with an error type that cannot be restored."""

    default_code = "step_failed"


class EventTimeout(HoldfastError):
    """The event that a handler waits for did not arrive in time."""

    default_code = "event_timeout"


class EgressError(HoldfastError):
    """An outgoing HTTP request got no usable response."""

    default_code = "egress_failed"


class EgressRefused(EgressError):
    """The egress policy forbids the address. A retry does not help."""

    default_code = "egress_refused"


class EgressTimeout(EgressError):
    """The server did not respond in time."""

    default_code = "egress_timeout"


class EgressTooLarge(EgressError):
    """The response is larger than the limit."""

    default_code = "egress_too_large"


class EgressUnreachable(EgressError):
    """DNS, the connection or TLS failed, or the connection broke."""

    default_code = "egress_unreachable"


class StoreError(HoldfastError):
    """The database could not be used."""

    default_code = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be reached, the connection was lost, or its disk is full."""

    default_code = "store_unavailable"


class SchemaMismatch(StoreError):
    """The database is not migrated, or was migrated by a newer release."""

    default_code = "schema_mismatch"
