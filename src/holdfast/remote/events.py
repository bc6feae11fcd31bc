"""``client.events``: list and follow the ledger; the parser of server-sent events."""

from __future__ import annotations

import codecs
import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from holdfast.engine.job import Event
from holdfast.engine.names import check_name
from holdfast.engine.operation import Emit, Items, awaited_stream, stream
from holdfast.errors import InvalidInput
from holdfast.features.events import operations
from holdfast.remote.derived import OverHttp
from holdfast.remote.http_requests import (
    Pause,
    Read,
    Reply,
    Request,
    Steps,
    Unreachable,
    document,
    get,
    post,
    query_pairs,
    without_none,
)
from holdfast.remote.responses import checked, read, read_page, unexpected, unreadable
from holdfast.remote.runners import Link, RemoteNamespace, no_response, send_with_retries
from holdfast.stores.requests import SentResult

_END = re.compile(r"\r\n|\n|\r")  # and no other: JSON may contain characters that ``splitlines`` treats as line ends
MAX_LINE = 4 * 1024 * 1024
"""Maximum size of an event, which holds one row of the ledger."""


class MessageTooLong(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: str
    id: str | None
    """The last id, from this message or an earlier one."""


class Parser:
    """``feed`` yields complete messages. ``last_id`` is the position to resume from after a lost connection: that of
    the last complete message, since only the id of the next one may have arrived. ``retry`` is the delay in seconds
    that the service requests, and ``received`` is whether any complete message has arrived."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.retry: float | None = None
        self.received = False
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._event, self._data, self._id = "", list[str](), last_id
        self._size = 0
        self._started = False

    def feed(self, chunk: bytes) -> Iterator[Message]:
        text = self._rest + self._decode(chunk)
        if not self._started and text:
            self._started = True
            text = text.removeprefix("\ufeff")
        # An incomplete line is kept for the next chunk; so is a CR at the end, since its LF may follow.
        text, tail = (text[:-1], "\r") if text.endswith("\r") else (text, "")
        *lines, rest = _END.split(text)
        self._rest = rest + tail
        if len(self._rest) > MAX_LINE:
            raise MessageTooLong
        for line in lines:
            message = self._take(line)
            if message is not None:
                yield message

    def _take(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._size += len(value)
            if self._size > MAX_LINE:
                raise MessageTooLong
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value or None
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) < 10:
            self.retry = int(value) / 1000
        return None

    def _dispatch(self) -> Message | None:
        event, data = self._event or "message", self._data
        self._event, self._data, self._size = "", [], 0
        self.last_id, self.received = self._id, True
        return Message(event, "\n".join(data), self.last_id) if data else None


Gaps = Literal["tell", "skip"]
"""If retention removed unread events: raise ``EventsGone``, or skip them."""
PAGE = 200
REMEMBERED = 5_000
MAX_ERROR_BODY = 65_536
CURSOR = "holdfast-cursor"
"""The response header with the position at which a stream begins."""


class EventFilter(TypedDict, total=False):
    """Conditions that all have to match; several values of one are alternatives."""

    kind: str | Sequence[str]
    type: str | Sequence[str]
    job: str | Sequence[str]
    queue: str | Sequence[str]


class Events(OverHttp, operations.Events):
    __doc__ = operations.Events.__doc__

    @stream
    def list(self, *, after: str | None = None, gaps: Gaps = "tell", **wanted: Unpack[EventFilter]) -> Items[Event]:
        """Events after a cursor, in commit order, up to the end. Each has the ``cursor`` to continue from; the caller
        keeps its own position. If retention removed unread events, ``EventsGone`` is raised: its ``cursor`` is the
        current end, to follow from after everything was read again. With ``gaps="skip"`` they are left out."""
        position = after
        while True:
            request = get("/events", after=position, limit=PAGE, gaps=_gaps_parameter(gaps), **wanted)
            last = position
            events, position = read_page(Event, (yield from self._request(request)))
            for event in events:
                yield Emit(event)
            # If few events match, a page may be empty without being the last: then its position has advanced.
            if position is None or (not events and position == last):
                return

    alist = awaited_stream(list)

    @stream
    def follow(self, *, after: str | None = None, gaps: Gaps = "tell", **wanted: Unpack[EventFilter]) -> Items[Event]:
        """Events as they happen, from a cursor or from now on, without end. A lost connection is opened again at the
        last position: no event is missed or repeated. If the service stays unreachable, ``StoreUnavailable`` is raised;
        if retention removed events, ``EventsGone`` as in ``list``."""
        link, position, seen, silent = self._runner.link, after, _Recent(), 0
        while True:
            request = _stream_request(position, gaps, wanted)
            reply = yield from send_with_retries(request, link.base, link.retrying, stream=True)
            if reply.status != 200 or "text/event-stream" not in reply.headers.get("content-type", ""):
                complete = yield from _with_body(reply)
                checked(complete, link.token)
                raise unexpected(complete, link.token)
            # The start of a stream is fixed even if the connection is lost before the first event.
            position = position or reply.headers.get(CURSOR) or None
            parser = Parser(position)
            while True:
                chunk: bytes | Unreachable = yield Read()
                if isinstance(chunk, Unreachable) or not chunk:
                    break
                for event in _events(parser, chunk):
                    if seen.is_new(event.seq):
                        yield Emit(event)
            position = parser.last_id or position
            silent = 0 if parser.received else silent + 1
            yield Pause(_reconnect_delay(parser, request, link, silent))

    afollow = awaited_stream(follow)


def _reconnect_delay(parser: Parser, request: Request, link: Link, silent: int) -> float:
    """Seconds to wait before the stream is opened again. A stream that ends without an event counts as no response: it
    is retried as often, and then an error."""
    retrying = link.retrying
    if not silent:
        return min(max(parser.retry or 0.0, retrying.first), retrying.longest)
    error = Unreachable("the stream ended before the first event")
    pause = retrying.pause(request, error, silent)
    if pause is None:
        raise no_response(request, link.base, error, silent)
    return pause


def send_event(
    namespace: RemoteNamespace, name: str, data: dict[str, Any] | None, key: str | None, job: str | None
) -> Steps[SentResult]:
    body = without_none(name=check_name(name, "event"), data=data, key=key, job=job)
    # With a key, an event that is sent twice is recorded once.
    return (yield from namespace._read(SentResult, post("/events", body, repeatable=key is not None)))


class _Recent:
    """The sequence numbers of the last events. They are not in order: an event that is committed later may have a lower
    number."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def is_new(self, seq: int) -> bool:
        if seq in self._seen:
            return False
        self._seen[seq] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True


def _gaps_parameter(gaps: Gaps) -> str | None:
    """Only if it is not the default: older services do not know the parameter."""
    return None if gaps == "tell" else gaps


def _stream_request(position: str | None, gaps: Gaps, wanted: EventFilter) -> Request:
    if position is not None and not (position.isascii() and position.isprintable()):  # not valid in a header
        raise InvalidInput(f"{position!r} is not a cursor", code="invalid_cursor")
    headers = {"Accept": "text/event-stream"} | ({} if position is None else {"Last-Event-ID": position})
    query = query_pairs({**wanted, "gaps": _gaps_parameter(gaps)})
    return Request("GET", "/events/stream", query, headers=headers, repeatable=True)


def _events(parser: Parser, chunk: bytes) -> Iterator[Event]:
    try:
        for message in parser.feed(chunk):
            if message.event.startswith("job."):
                yield _event(message)
    except MessageTooLong:
        raise unreadable("event", "it has no end") from None


def _event(message: Message) -> Event:
    try:
        return read(Event, document(message.data.encode()))
    except (ValueError, RecursionError):
        raise unreadable("event", "it is not JSON") from None


def _with_body(head: Reply) -> Steps[Reply]:
    body = b""
    while len(body) < MAX_ERROR_BODY:
        chunk: bytes | Unreachable = yield Read()
        if isinstance(chunk, Unreachable) or not chunk:
            break
        body += chunk
    return dataclasses.replace(head, body=body)
