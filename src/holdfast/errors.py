"""Every error Holdfast raises, and the stable code each one carries.

    HoldfastError
    ├── InvalidInput            the caller's fault, nothing was stored
    │   ├── InvalidPayload      not JSON, too large, too deep
    │   ├── InvalidArguments    do not fit the handler's signature
    │   └── InvalidSetting      a bad URL, policy, name or option
    ├── Refused                 a rule of the system said no
    │   ├── NotFound            no such job in this tenant
    │   ├── Conflict            another state, or another payload under the same key
    │   ├── StaleLease          the token is not (or no longer) the holder's
    │   ├── IllegalTransition   the database refused a step that is not in the table
    │   └── EventsGone          retention has removed events that a follower had not read
    ├── JobFailed               raised by ``result()`` of a job that did not succeed
    ├── WaitTimeout             the job had not ended in time; it goes on
    ├── StepsChanged            the handler's steps are not those that the job has behind it
    ├── StepFailed              a step failed before; the type of its error is not known here any more
    ├── EventTimeout            the event a handler waited for did not come in time
    ├── EgressError             an outgoing HTTP request came to no answer that can be used
    │   ├── EgressRefused       the guard did not let it out; it never will
    │   ├── EgressTimeout       too slow
    │   ├── EgressTooLarge      more came back than is taken
    │   └── EgressUnreachable   no address, no connection, no TLS, broken off
    └── StoreError              the database could not be used
        ├── StoreUnavailable    cannot connect, connection lost, disk full
        └── SchemaMismatch      not migrated, or migrated by a newer release

A code is part of the public interface: it is stored in ledgers, printed by the
CLI and matched by other programs. Codes are never renamed.
"""

from __future__ import annotations

from typing import ClassVar, Final

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


# What to do about an error that was raised without a fix of its own, by its code.
FIXES: Final = {
    "error": "Read the message. If it does not help, report it with the code.",
    "invalid_input": "Correct the value named in the message and try again.",
    "invalid_payload": "Pass JSON: objects with text keys, lists, text, numbers, true, false and null.",
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
    "step_failed": "Read the step's error: holdfast jobs show <id>.",
    "event_timeout": "Send the event in time, or use a longer timeout.",
    "egress_failed": "Try again. If it fails again, check the server.",
    "egress_refused": "Allow the address in the egress policy if jobs may reach it.",
    "egress_timeout": "Try again later, or allow more time.",
    "egress_too_large": "Request less data, or raise the limit.",
    "egress_unreachable": "Check the name, the port and the certificate; try again later.",
    "store_error": "Run holdfast doctor. If it finds nothing, report the message.",
    "store_unavailable": "Check that the database runs and that its URL is right (holdfast doctor). Workers retry.",
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
    "kind_unregistered": "Register it: holdfast kinds add NAME; or all of an app: holdfast kinds register MODULE:APP",
    "agent_unregistered": "Register it: holdfast agents register NAME",
    "event_type_unregistered": "Register it: holdfast event-types add NAME",
    "event_data_invalid": "Send data that fits the schema: holdfast event-types show NAME",
    "tenant_required": "Name a tenant: App(tenant=…), using(tenant=…), --tenant. The tenant `default` stands for none.",
    "sealing_blocked": "End that transaction: select pg_terminate_backend(<process>).",
}


class HoldfastError(Exception):
    """The base class: a stable ``code``, a ``message``, and a ``fix`` where there is one."""

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
    default_code = "invalid_input"


class InvalidPayload(InvalidInput):
    default_code = "invalid_payload"


class InvalidArguments(InvalidInput):
    default_code = "invalid_arguments"


class InvalidSetting(InvalidInput):
    default_code = "invalid_setting"


class Refused(HoldfastError):
    default_code = "refused"


class NotFound(Refused):
    default_code = "not_found"


class Conflict(Refused):
    default_code = "conflict"


class StaleLease(Refused):
    default_code = "stale_lease"


class IllegalTransition(Refused):
    default_code = "illegal_transition"


class EventsGone(Refused):
    """``through`` is the number of the last event that is missing. ``cursor`` is where the ledger ended when that was
    noticed: whoever looks at everything anew, and follows from there, misses nothing more."""

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
    default_code = "job_failed"


class WaitTimeout(HoldfastError):
    default_code = "wait_timeout"


class StepsChanged(HoldfastError):
    default_code = "steps_changed"


class StepFailed(HoldfastError):
    default_code = "step_failed"


class EventTimeout(HoldfastError):
    default_code = "event_timeout"


class EgressError(HoldfastError):
    default_code = "egress_failed"


class EgressRefused(EgressError):
    default_code = "egress_refused"


class EgressTimeout(EgressError):
    default_code = "egress_timeout"


class EgressTooLarge(EgressError):
    default_code = "egress_too_large"


class EgressUnreachable(EgressError):
    default_code = "egress_unreachable"


class StoreError(HoldfastError):
    default_code = "store_error"


class StoreUnavailable(StoreError):
    default_code = "store_unavailable"


class SchemaMismatch(StoreError):
    default_code = "schema_mismatch"
