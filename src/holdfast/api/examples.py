"""An example of each body that does not say one where it is defined, by its name in the document of the API. A test
compares every example with its schema, and finds bodies that have none."""

from __future__ import annotations

from typing import Any, Final

JOB: Final = "0198c5b4-0000-7000-8000-000000000001"
WHY: Final = {"reason": "asked for by the customer"}
MENDED: Final = {"reason": "mended in release 7"}

EXAMPLES: Final[dict[str, Any]] = {
    "AddJobs": {"nodes": [{"name": "print", "kind": "print"}], "edges": [{"parent": "render", "child": "print"}]},
    "AddNode": {"name": "render", "kind": "render", "payload": {"issue": 7}},
    "As": {"role": "executor"},
    "Because": WHY,
    "Checkpoint": {"job": JOB, "attempt": 1, "name": "row", "value": 100},
    "ClaimJobs": {"queues": ["default", "mail"], "want": 4, "kinds": ["send_mail"], "wait": 20},
    "Decide": {"verdict": "approve", "by": "ada", "comment": "fine"},
    "Disable": {"reason": "it asks for too much"},
    "Discard": {"reason": "the order was withdrawn"},
    "DiscardGroup": {"reason": "the orders were withdrawn", "rate": 50},
    "Enable": {"skip": False},
    "EnqueueMany": {
        "jobs": [
            {"kind": "send_mail", "payload": {"to": "ada@example.com"}, "key": "welcome-7"},
            {"kind": "send_mail", "payload": {"to": "bob@example.com"}, "key": "welcome-8"},
        ]
    },
    "Go": {"skip": False},
    "MoveTo": {"first": True, "reason": "a customer waits for it"},
    "Note": {"note": "the bank was away on Monday; see ticket 7"},
    "OpenLease": {"name": "node-7", "ttl": 30, "kinds": ["send_mail"], "queues": ["mail"], "slots": 4},
    "Redrive": {**MENDED, "max_attempts": 3},
    "RedriveAs": {"payload": {"to": "ada@example.com"}, **MENDED},
    "RedriveGroup": {**MENDED, "rate": 50},
    "Registering": {"on": True},
    "Release": {"jobs": [{"id": JOB, "attempt": 1}]},
    "RenewLease": {"ttl": 30},
    "Reset": {"to": "now"},
    "Rotate": {"secret": "OPS_HOOK_2", "keep": 1},
    "SetRule": {"kind": "send_mail", "forbidden": ["password"], "max_bytes": "64KB"},
    "Settle": {"job": JOB, "attempt": 1, "outcome": "succeeded", "result": {"sent": 3}},
    "SettleMany": {"settlements": [{"job": JOB, "attempt": 1, "outcome": "failed", "error": {"message": "busy"}}]},
    "Sharing": {"on": True, "queue": "mail"},
    "What": {"queue": "mail"},
}
