"""Server-sent events, out of bytes that come in pieces of any size (the format of the HTML standard, section 9.2)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

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
