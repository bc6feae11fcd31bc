"""Removes secrets from text before it is stored or logged: errors, reasons, progress, log lines.

A secret is recognized by its name (``password=…``, ``"token": "…"``), by its shape (a JWT, a private key), or by its
value, which the caller passes in. Nothing here reads the environment.

Invariant: the time is linear in the length of the text, for every text. Every pattern either has bounded repeats, or
starts only where a run of its characters starts and takes all of it; and text is cut before it is searched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final, Protocol
from urllib.parse import quote, unquote

from holdfast.engine.payload import JsonValue, decode
from holdfast.errors import InvalidPayload, InvalidSetting

_URL: Final = re.compile(r"(?<![A-Za-z0-9+.\-])[A-Za-z][A-Za-z0-9+.\-]{0,30}://[^\s/?#:@]{0,256}:([^\s/]{1,256})@")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{0,30}")
_KEY_BLOCK: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
# Three groups: text to keep, the secret, text to keep. A scheme is followed by something that is not a plain word.
# Before each, the parts of which one is in every match, in small letters: finding those is ten times as fast.
_SHAPES: Final = tuple(
    (hints.split(), re.compile(pattern))
    for hints, pattern in (
        (
            "bearer basic",
            r"\b((?i:bearer|basic)\s{1,4})((?=[a-z+/._~\-]{0,200}[A-Z0-9=])[A-Za-z0-9._~+/\-]{8,4000}={0,2})()",
        ),
        ("eyj", r"()((?<![A-Za-z0-9_\-])eyJ[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]{5,}(?:\.[A-Za-z0-9_\-]*)?)()"),
        ("akia asia", r"()(\b(?:AKIA|ASIA)[A-Z0-9]{16}\b)()"),
        (
            "gho_ ghp_ ghr_ ghs_ ghu_ github_pat_ glpat- xox sk_live_ rk_live_ sk- aiza whsec_",
            r"()((?<![A-Za-z0-9_\-])(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk_live_|rk_live_|sk-|AIza|whsec_)"
            r"[A-Za-z0-9_\-]{16,})()",
        ),
        # Our own: of the API, of approvals, of sessions.
        ("hf_ hfa_ hfs_", r"()((?<![A-Za-z0-9_\-])hf[as]?_[A-Za-z0-9_\-]{40,})()"),
    )
)

_HEADER: Final = re.compile(r"(?i:authorization|cookie)")
_REST_OF_LINE: Final = re.compile(r"""[^\r\n\\"']*""")
_OPENING: Final = re.compile(r"""[bBrRuUfF]{0,2}(\"{3}|'{3}|\\?["'])""")
_BARE: Final = re.compile(r"""[^\s,;&"'<>()\[\]{}\\]*""")
_TELLING: Final = re.compile(r"""(?:none|null|true|false|["']{2})?""", re.IGNORECASE)
_REST_OF_TEXT: Final = {quote: re.compile(rf"[^{quote}\\]*(?:\\.[^{quote}\\]*)*{quote}", re.DOTALL) for quote in "\"'"}
_BRACKETS: Final = re.compile(r"""["'(){}\[\]]""")


class NamePattern:
    """Finds ``name=``, ``"name":`` and the like, if the name contains a secret word."""

    def __init__(self, names: Iterable[str]) -> None:
        names = tuple(names)
        words = "|".join(map(_word, names))
        self._parts = [_parts(name.lower()) for name in names] if all(map(str.isascii, names)) else [[]]
        # The word may be a plural, or be followed by more of the name: `token_2`, `secretKey`, but not `tokenizer`.
        name = rf"(?:{words})s?(?:[_\-0-9A-Z][\w\-]{{0,40}})?"
        self._whole = re.compile(rf"(?:{words})s?(?:[_\-0-9A-Z]|$)")
        self._before_value = re.compile(rf"""({name})\\?["']?[ \t]{{0,8}}(?:=>|:=|==?|:)[ \t]{{0,8}}""")

    def match_name(self, name: str) -> bool:
        return self._whole.search(name[:200]) is not None

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._before_value.search(text, start)

    def may_match(self, text: str) -> bool:
        """Whether all parts of one of the names are in the text: nearly always not, and a search is slow."""
        small = _small(text)
        return small is None or any(all(part in small for part in parts) for parts in self._parts)


def _word(name: str) -> str:
    """A pattern for ``api_key`` that also matches ``apiKey`` and ``api-key``. A short name matches only at the start of
    a word, because other words contain it."""
    parts = map(re.escape, _parts(name))
    begins = r"(?<![A-Za-z])" if len(name) <= 4 else ""
    return f"{begins}(?i:{r'[_ -]?'.join(parts)})"


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"[_\-\s]+", name.strip()) if part]


def encodings(value: str) -> Iterator[str]:
    """The value as it is written inside JSON, a ``repr`` and a URL."""
    plain = value.encode("utf-8", "replace").decode()
    yield json.dumps(plain)[1:-1]
    yield json.dumps(plain, ensure_ascii=False)[1:-1]
    yield repr(plain)[1:-1]
    yield quote(plain, safe="")


def url_passwords(text: str) -> Iterator[str]:
    if "://" in text:
        for password in _URL.findall(text):
            yield password
            yield unquote(password)


def shown_url(url: object) -> str:
    """A URL for a message: without credentials and query. Of a text that is not a URL only the scheme is shown, because
    a password may be anywhere in it."""
    text = url if isinstance(url, str) else ""
    scheme, colon, rest = text.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        return "the text given"
    if not rest.startswith("//"):
        return f"{scheme}:…"
    credentials, at, location = rest[2:].rpartition("@")
    if not at and (not location.startswith("/") or ":" in location):  # only a path is certainly not a password
        return f"{scheme}://…"
    location = re.split("[?#]", location, maxsplit=1)[0]
    return f"{scheme}://{'…@' if credentials or at else ''}{location}"


def hide_shapes(text: str, hidden: str) -> str:
    """The text without secrets that are recognized by their shape."""
    if "-----BEGIN" in text:
        text = _KEY_BLOCK.sub(hidden, text)
    if "://" in text:
        text = _URL.sub(lambda url: url.group()[: url.start(1) - url.start()] + hidden + "@", text)
    small = _small(text)
    for hints, shape in _SHAPES:
        if small is None or any(hint in small for hint in hints):
            text = shape.sub(lambda match: match[1] + hidden + match[3], text)
    return text


def _small(text: str) -> str | None:
    """The text in small letters, to see quickly that a pattern cannot match; None if a pattern that ignores case may
    match other characters than ASCII."""
    return text.lower() if text.isascii() else None


def hide_named(text: str, names: NamePattern, hidden: str) -> str:
    """The text without the values of secret names."""
    if not names.may_match(text):
        return text
    parts: list[str] = []
    done = 0
    while (match := names.search(text, done)) is not None:
        start = match.end()
        parts.append(text[done:start])
        if text.startswith(hidden, start):  # the text was redacted before
            done = start
            continue
        done = _value_end(text, start, header=_HEADER.search(match[1]) is not None)
        value = text[start:done]
        parts.append(value if _TELLING.fullmatch(value) else hidden)
    return "".join(parts) + text[done:] if parts else text


def _value_end(text: str, start: int, *, header: bool) -> int:
    """The end of the value that begins at ``start``. A quote or bracket that is not closed extends to the end of the
    text."""
    if opening := _OPENING.match(text, start):
        mark = opening[1]
        if len(mark) == 1:
            closed = _REST_OF_TEXT[mark].match(text, opening.end())
            return closed.end() if closed else len(text)
        end = text.find(mark, opening.end())
        return end + len(mark) if end >= 0 else len(text)
    if header:
        return _end(_REST_OF_LINE, text, start)
    end = _end(_BARE, text, start)
    return _closing(text, end) if text[end : end + 1] in ("(", "[", "{") else end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return start if match is None else match.end()


def _closing(text: str, start: int) -> int:
    """The end of a bracketed value; brackets within quotes do not count."""
    depth, at = 0, start
    while (match := _BRACKETS.search(text, at)) is not None:
        at = match.end()
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
            if depth == 0:
                return at
        else:
            closed = _REST_OF_TEXT[match[0]].match(text, at)
            at = closed.end() if closed else len(text)
    return len(text)


HIDDEN: Final = "[redacted]"
SECRET_NAMES: Final = (
    *("password", "passwd", "passphrase", "pwd", "secret", "token", "authorization", "cookie", "credential"),
    *("api_key", "access_key", "private_key", "encryption_key", "signing_key", "session_id"),
    *("ssn", "card_number", "cvv"),
)
LEAST: Final = 6
"""A known value shorter than this could be any word, and is not searched for."""
LEAST_RESTRICTED: Final = 4
"""The same for the values of a restricted payload, where ordinary words may be removed too."""
LINE_LIMIT: Final = 2_000
SPARE: Final = 4
"""The part of a text that is searched, as a multiple of the length that is kept: redaction usually shortens text."""

_WHITE: Final = re.compile(r"[\t\r\n\v\f\x85\u2028\u2029]+")
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Redact(Protocol):
    """At most ``limit`` characters of the text, without known secrets, with a note of how much was cut."""

    def __call__(self, text: str, limit: int = LINE_LIMIT, /) -> str: ...


class Redactor:
    """Knows secret names and values. Values may be added at any time; later texts are redacted with them."""

    def __init__(self, names: Iterable[str] = (), values: Iterable[str] = ()) -> None:
        self._names = tuple(dict.fromkeys((*SECRET_NAMES, *names)))
        self._named = NamePattern(self._names)
        self._values: tuple[str, ...] = ()
        self._known: re.Pattern[str] | None = None
        self.know(*values)

    def know(self, *values: str, least: int = LEAST) -> None:
        """Hide these values from now on. Calls under way in other threads use the values they started with."""
        fresh = {value for value in values if len(value) >= least}
        if fresh <= set(self._values):
            return
        known = {*self._values, *fresh, *(text for value in fresh for text in encodings(value))}
        # Longest first: of two values with the same beginning, the longer one must match.
        self._values = tuple(sorted(known, key=lambda value: (-len(value), value)))
        self._known = re.compile("|".join(map(re.escape, self._values)))

    def register(self, value: object) -> None:
        """``know`` for a value from a user: refuses one that could not be hidden."""
        if not isinstance(value, str) or len(value) < LEAST:
            raise InvalidSetting(
                f"a secret to redact must be text of at least {LEAST} characters",
                code="secret_too_short",
                fix="Shorter values match ordinary words. Rename the field so that redaction recognizes it.",
            )
        self.know(value)

    def also(self, values: Iterable[str], least: int = LEAST) -> Redactor:
        """A redactor that also knows these values."""
        values = [value for value in values if len(value) >= least]
        if not values:
            return self
        other = Redactor.__new__(Redactor)
        other._names, other._named = self._names, self._named
        other._values, other._known = self._values, self._known
        other.know(*values, least=least)
        return other

    def looks_secret(self, name: str) -> bool:
        return self._named.match_name(name)

    def __call__(self, text: str, limit: int = LINE_LIMIT) -> str:
        missing = len(text) - SPARE * limit
        if missing > 0:
            text = self._whole_values(text[: SPARE * limit])
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _clipped(hide_named(hide_shapes(text, HIDDEN), self._named, HIDDEN), limit, max(0, missing))

    def _whole_values(self, text: str) -> str:
        """The text without the beginning of a known value that the cut has left at its end."""
        for value in self._values:
            for size in range(min(len(value) - 1, len(text)), 3, -1):
                if text.endswith(value[:size]):
                    return text[:-size]
        return text

    def within(self, value: JsonValue) -> Iterator[str]:
        """The texts under a secret name in a document: the secrets among the arguments of a job."""
        stack: list[tuple[JsonValue, bool]] = [(value, False)]
        while stack:
            item, secret = stack.pop()
            if isinstance(item, dict):
                stack += [(inner, secret or self.looks_secret(name)) for name, inner in item.items()]
            elif isinstance(item, list):
                stack += [(inner, secret) for inner in item]
            elif isinstance(item, str):
                if secret:
                    yield item
                yield from url_passwords(item)

    def in_environment(self, variables: Iterable[tuple[str, str]]) -> Iterator[str]:
        """The values of variables with a secret name, and the passwords in URLs of all of them."""
        for name, value in variables:
            # PWD and OLDPWD are directories of the shell. A short number is a setting, not a secret.
            if name not in ("PWD", "OLDPWD") and self.looks_secret(name) and not (value.isdigit() and len(value) < 10):
                yield value
            yield from url_passwords(value)


class JobRedactor:
    """A redactor that also knows the secrets among the arguments of one job; they are searched for on first use. Every
    value of a ``restricted`` payload is a secret."""

    __slots__ = ("_payload", "_redact", "_secrets", "restricted")

    def __init__(self, redact: Redactor, payload: str, restricted: bool = False) -> None:
        self._redact = redact
        self._payload = payload
        self.restricted = restricted
        self._secrets: list[str] | None = None

    def __call__(self, text: str, limit: int = LINE_LIMIT) -> str:
        if self._secrets is None:
            try:
                value = decode(self._payload)
                self._secrets = list(_every_value(value) if self.restricted else self._redact.within(value))
            except InvalidPayload:  # the handler will not get it either
                self._secrets = []
        return self._redact.also(self._secrets, LEAST_RESTRICTED if self.restricted else LEAST)(text, limit)


def _every_value(value: JsonValue) -> Iterator[str]:
    """Each text and number, and each key that the sender may have chosen: all but the names of the arguments."""
    stack: list[tuple[JsonValue, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, dict):
            yield from (key for key in item if depth)
            stack += [(inner, depth + 1) for inner in item.values()]
        elif isinstance(item, list):
            stack += [(inner, depth + 1) for inner in item]
        elif item is not None and not isinstance(item, bool):
            yield str(item)


def one_line(text: str, limit: int = LINE_LIMIT) -> str:
    """Text for a field of a log line: no line breaks, no control characters, no changes of text direction."""
    return _clipped(_UNSEEN.sub("", _WHITE.sub(" ", text[: SPARE * limit])), limit, max(0, len(text) - SPARE * limit))


def _clipped(text: str, limit: int, missing: int) -> str:
    if not missing and len(text) <= limit:
        return text
    # Measured with the largest possible count; the actual one is not longer.
    kept = max(0, limit - len(f"… [{len(text) + missing} characters cut]"))
    return (text[:kept] + f"… [{len(text) - kept + missing} characters cut]")[:limit]
