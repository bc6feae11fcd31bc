"""``client.events``, subscriptions, consumers; server-sent events."""

from __future__ import annotations

import codecs
import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from holdfast.engine.job import Event
from holdfast.engine.names import check_name
from holdfast.engine.operation import Emit, Items, awaited, awaited_stream, operation, stream
from holdfast.errors import InvalidInput
from holdfast.features.events.model import Consumer
from holdfast.remote.http_requests import (
    Pause,
    Read,
    Reply,
    Request,
    Steps,
    Unreachable,
    asked,
    delete,
    document,
    get,
    given,
    post,
    segment,
)
from holdfast.remote.link import Link, answer_to, unanswered
from holdfast.remote.responses import checked, read, read_page, strange, unreadable
from holdfast.remote.runners import RemoteNamespace
from holdfast.stores.requests import SentResult

_END = re.compile(r"\r\n|\n|\r")  # and no other: JSON may hold what Python also takes for the end of a line
LONGEST_LINE = 4 * 1024 * 1024
"""An event holds one ledger row; whoever sends more than that is no service of ours."""


class TooLong(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Message:
    event: str
    data: str
    id: str | None
    """The last id that was said, by this message or one before it."""


class Parser:
    """``feed`` answers the messages that are whole. ``last_id`` is where to go on after a lost connection: behind the
    last whole one, since of the next only the number may have come. ``retry`` is how many seconds the service asks to
    wait before that, and ``told`` says whether anything whole has come at all."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.retry: float | None = None
        self.told = False
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._event, self._data, self._id = "", list[str](), last_id
        self._size = 0
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[Message]:
        text = self._rest + self._decode(chunk)
        if not self._begun and text:
            self._begun = True
            text = text.removeprefix("\ufeff")
        # A line that has no end yet waits; so does a CR at the very end, since its LF may be on the way.
        text, held = (text[:-1], "\r") if text.endswith("\r") else (text, "")
        *whole, rest = _END.split(text)
        self._rest = rest + held
        if len(self._rest) > LONGEST_LINE:
            raise TooLong
        for line in whole:
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
            if self._size > LONGEST_LINE:
                raise TooLong
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
        self.last_id, self.told = self._id, True
        return Message(event, "\n".join(data), self.last_id) if data else None


Gaps = Literal["tell", "skip"]
"""Where retention was faster: ``EventsGone``, or what is left."""
PAGE = 200
REMEMBERED = 5_000
MOST_OF_A_REFUSAL = 65_536
CURSOR = "holdfast-cursor"
"""The header in which the service says where a stream begins."""


class EventsWanted(TypedDict, total=False):
    """Which events: those for which all of it holds. Several of one are alternatives."""

    kind: str | Sequence[str]
    type: str | Sequence[str]
    job: str | Sequence[str]


class Events(RemoteNamespace):
    @stream
    def list(self, *, after: str | None = None, gaps: Gaps = "tell", **wanted: Unpack[EventsWanted]) -> Items[Event]:
        """Those after a cursor, in the order of their commits, until there are none. Each has the ``cursor`` to go on
        from; how far you are is yours to keep. ``EventsGone`` where retention has removed some that you had not read:
        it has the ``cursor`` of the present end, to follow from when you have looked at everything anew. With
        ``gaps="skip"`` they are left out."""
        place = after
        while True:
            answer = yield from self._ask(get("/events", after=place, limit=PAGE, gaps=_said(gaps), **wanted))
            last = place
            found, place = read_page(Event, answer)
            for event in found:
                yield Emit(event)
            # Where few fit, a page may be empty and not the last: then its place has gone on.
            if place is None or (not found and place == last):
                return

    alist = awaited_stream(list)

    @stream
    def follow(self, *, after: str | None = None, gaps: Gaps = "tell", **wanted: Unpack[EventsWanted]) -> Items[Event]:
        """As they happen, from a cursor or from now on, without end. A lost connection is made again and goes on where
        it was: nothing is missed, nothing comes twice. When the service stays away it is ``StoreUnavailable``; where
        retention was faster, ``EventsGone`` as in ``list``."""
        link, place, seen, silent = self._runner.link, after, _Recent(), 0
        while True:
            request = _following(place, gaps, wanted)
            reply = yield from answer_to(request, link.base, link.retrying, stream=True)
            if reply.status != 200 or "text/event-stream" not in reply.headers.get("content-type", ""):
                whole = yield from _whole(reply)
                checked(whole, link.token)
                raise strange(whole, link.token)
            # From now on means from here on, also when the connection is lost before the first word.
            place = place or reply.headers.get(CURSOR) or None
            parser = Parser(place)
            while True:
                got: bytes | Unreachable = yield Read()
                if isinstance(got, Unreachable) or not got:
                    break
                for event in _events(parser, got):
                    if seen.is_new(event.seq):
                        yield Emit(event)
            place = parser.last_id or place
            silent = 0 if parser.told else silent + 1
            yield Pause(_before_the_next(parser, request, link, silent))

    afollow = awaited_stream(follow)

    @operation
    def consumers(self) -> Steps[_Consumers]:
        """The consumers whose position the database keeps."""
        return (yield from self._pages(Consumer, "/consumers"))

    aconsumers = awaited(consumers)

    @operation
    def reset_consumer(self, name: str, to: Literal["beginning", "now"] = "beginning") -> Steps[None]:
        yield from self._ask(post(f"/consumers/{segment(name)}/reset", {"to": to}))

    areset_consumer = awaited(reset_consumer)

    @operation
    def remove_consumer(self, name: str) -> Steps[None]:
        yield from self._ask(delete(f"/consumers/{segment(name)}"))

    aremove_consumer = awaited(remove_consumer)


_Consumers = list[Consumer]  # inside the class the word is a method


def _before_the_next(parser: Parser, request: Request, link: Link, silent: int) -> float:
    """How long to wait before the stream is opened again. One that ends without a word is no better than no answer: it
    is tried as often, and then given up."""
    retrying = link.retrying
    if not silent:
        return min(max(parser.retry or 0.0, retrying.first), retrying.longest)
    lost = Unreachable("the stream ended before anything was told")
    pause = retrying.pause(request, lost, silent)
    if pause is None:
        raise unanswered(request, link.base, lost, silent)
    return pause


def told(
    noun: RemoteNamespace, name: str, data: dict[str, Any] | None, key: str | None, job: str | None
) -> Steps[SentResult]:
    request = post("/events", given(name=check_name(name, "event"), data=data, key=key, job=job))
    # Told twice under the same key it is told once, so that it may be sent again.
    return (yield from noun._read(SentResult, dataclasses.replace(request, repeatable=key is not None)))


class _Recent:
    """The last events that were handed out. Their numbers do not come in order: what is committed later may have been
    numbered earlier."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def is_new(self, seq: int) -> bool:
        if seq in self._seen:
            return False
        self._seen[seq] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True


def _said(gaps: Gaps) -> str | None:
    """Only what is not the usual: a service of an older release knows nothing of it."""
    return None if gaps == "tell" else gaps


def _following(place: str | None, gaps: Gaps, wanted: EventsWanted) -> Request:
    if place is not None and not (place.isascii() and place.isprintable()):  # no header could carry it
        raise InvalidInput(f"{place!r} is not a cursor", code="invalid_cursor")
    headers = {"Accept": "text/event-stream"} | ({} if place is None else {"Last-Event-ID": place})
    return Request("GET", "/events/stream", asked({**wanted, "gaps": _said(gaps)}), headers=headers, repeatable=True)


def _events(parser: Parser, chunk: bytes) -> Iterator[Event]:
    try:
        for message in parser.feed(chunk):
            if message.event.startswith("job."):
                yield _event(message)
    except TooLong:
        raise unreadable("event", "it has no end") from None


def _event(message: Message) -> Event:
    try:
        return read(Event, document(message.data.encode()))
    except (ValueError, RecursionError):
        raise unreadable("event", "it is not JSON") from None


def _whole(head: Reply) -> Steps[Reply]:
    body = b""
    while len(body) < MOST_OF_A_REFUSAL:
        got: bytes | Unreachable = yield Read()
        if isinstance(got, Unreachable) or not got:
            break
        body += got
    return dataclasses.replace(head, body=body)
