"""Messages into a job, and values and answers out of it: their records, and the names under which they are kept.

A handler that waits for a message waits for the event ``mailbox:NAME``, which only messages to its job fulfil. A
published value is the result of the step ``publish NAME``, an answer that of the step ``answer ID``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.engine.ids import parse_id
from holdfast.engine.names import check_name

MAILBOX: Final = "mailbox:"
PUBLISH: Final = "publish "
ANSWER: Final = "answer "
NAME_LIMIT: Final = 90
DATA_LIMIT: Final = 1_048_576
"""Bytes of a message as JSON."""
VALUE, REFUSED = "value", "refused"
ON_RECEIPT: Final = "on_receipt"
"""Of a refusal: whether ``receive`` refused the message, and not the handler later."""


@dataclass(frozen=True, slots=True)
class Published:
    """A value that a handler has published. ``n`` and ``attempt`` are the durable call and the attempt that did."""

    name: str
    value: Any
    n: int
    attempt: int
    at: datetime


def check_message(name: object) -> str:
    return check_name(name, "message", limit=NAME_LIMIT)


def mailbox(name: object) -> str:
    """The name of the event that a handler waits for when it receives a message."""
    return MAILBOX + check_message(name)


def published_as(name: object) -> str:
    """The name of the step that publishes this value."""
    return PUBLISH + check_name(name, "value", limit=NAME_LIMIT)


def answered_as(message_id: object) -> str:
    """The name of the step that answers this message."""
    return ANSWER + parse_id(str(message_id))


def is_refusal_on_receipt(name: str, value: Any) -> bool:
    """Whether this step is a refusal by ``receive``, or one of a release that did not say."""
    return name.startswith(ANSWER) and isinstance(value, dict) and value.get(ON_RECEIPT, REFUSED in value)


def is_mailbox(event_name: str) -> bool:
    return event_name.startswith(MAILBOX)
