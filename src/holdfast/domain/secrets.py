"""What secrets look like in text: under a telling name, or by their own shape. The patterns behind ``redaction``.

Each one is written so that no text can make it slow: repeats are bounded, or the pattern starts only where a run
of its characters starts and takes all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, unquote

_URL: Final = re.compile(r"(?<![A-Za-z0-9+.\-])[A-Za-z][A-Za-z0-9+.\-]{0,30}://[^\s/?#:@]{0,256}:([^\s/]{1,256})@")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{0,30}")
_KEY_BLOCK: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
# Three groups: what stays in front, the secret, what stays behind. A scheme is followed by something that is no word.
_SHAPES: Final = (
    re.compile(r"\b((?i:bearer|basic)\s{1,4})((?=[a-z+/._~\-]{0,200}[A-Z0-9=])[A-Za-z0-9._~+/\-]{8,4000}={0,2})()"),
    re.compile(r"()((?<![A-Za-z0-9_\-])eyJ[A-Za-z0-9_\-]{5,}\.[A-Za-z0-9_\-]{5,}(?:\.[A-Za-z0-9_\-]*)?)()"),
    re.compile(r"()(\b(?:AKIA|ASIA)[A-Z0-9]{16}\b)()"),
    re.compile(
        r"()((?<![A-Za-z0-9_\-])(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk_live_|rk_live_|sk-|AIza|whsec_)"
        r"[A-Za-z0-9_\-]{16,})()"
    ),
    re.compile(r"()((?<![A-Za-z0-9_\-])hf[as]?_[A-Za-z0-9_\-]{40,})()"),  # our own: of the API, of gates, of sessions
)

_HEADER: Final = re.compile(r"(?i:authorization|cookie)")
_REST_OF_LINE: Final = re.compile(r"""[^\r\n\\"']*""")
_OPENING: Final = re.compile(r"""[bBrRuUfF]{0,2}(\"{3}|'{3}|\\?["'])""")
_BARE: Final = re.compile(r"""[^\s,;&"'<>()\[\]{}\\]*""")
_TELLING: Final = re.compile(r"""(?:none|null|true|false|["']{2})?""", re.IGNORECASE)
_REST_OF_TEXT: Final = {quote: re.compile(rf"[^{quote}\\]*(?:\\.[^{quote}\\]*)*{quote}", re.DOTALL) for quote in "\"'"}
_BRACKETS: Final = re.compile(r"""["'(){}\[\]]""")


class NamePattern:
    """Finds ``name=``, ``"name":`` and the like, where the name has a secret word in it."""

    def __init__(self, words: str) -> None:
        # After the word a plural, or more of the name: `token_2`, `secretKey`, but no `tokenizer`.
        name = rf"(?:{words})s?(?:[_\-0-9A-Z][\w\-]{{0,40}})?"
        self._whole = re.compile(rf"(?:{words})s?(?:[_\-0-9A-Z]|$)")
        self._before_value = re.compile(rf"""({name})\\?["']?[ \t]{{0,8}}(?:=>|:=|==?|:)[ \t]{{0,8}}""")

    def match_name(self, name: str) -> bool:
        return self._whole.search(name[:200]) is not None

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._before_value.search(text, start)


def name_pattern(names: Iterable[str]) -> NamePattern:
    return NamePattern("|".join(map(_word, names)))


def _word(name: str) -> str:
    """``api_key`` also as ``apiKey``, ``api-key``; a short one only where a word begins, since others contain it."""
    parts = [re.escape(part) for part in re.split(r"[_\-\s]+", name.strip()) if part]
    begins = r"(?<![A-Za-z])" if len(name) <= 4 else ""
    return f"{begins}(?i:{r'[_ -]?'.join(parts)})"


def encodings(value: str) -> Iterator[str]:
    """How the same value looks inside JSON, a ``repr`` and a URL."""
    plain = value.encode("utf-8", "replace").decode()
    yield json.dumps(plain)[1:-1]
    yield json.dumps(plain, ensure_ascii=False)[1:-1]
    yield repr(plain)[1:-1]
    yield quote(plain, safe="")


def url_passwords(text: str) -> Iterator[str]:
    if "://" in text:
        for found in _URL.findall(text):
            yield found
            yield unquote(found)


def shown_url(url: object) -> str:
    """A URL as it may stand in a message: without credentials and query. Of what is no URL nothing but its first word,
    since a password may be anywhere in it."""
    text = url if isinstance(url, str) else ""
    scheme, colon, rest = text.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        return "the text given"
    if not rest.startswith("//"):
        return f"{scheme}:…"
    credentials, at, place = rest[2:].rpartition("@")
    if not at and (not place.startswith("/") or ":" in place):  # only a path is sure to be no password
        return f"{scheme}://…"
    place = re.split("[?#]", place, maxsplit=1)[0]
    return f"{scheme}://{'…@' if credentials or at else ''}{place}"


def hide_shapes(text: str, hidden: str) -> str:
    """Without what is a secret by its shape, whatever it is called."""
    if "-----BEGIN" in text:
        text = _KEY_BLOCK.sub(hidden, text)
    if "://" in text:
        text = _URL.sub(lambda url: url.group()[: url.start(1) - url.start()] + hidden + "@", text)
    for shape in _SHAPES:
        text = shape.sub(lambda found: found[1] + hidden + found[3], text)
    return text


def hide_named(text: str, names: NamePattern, hidden: str) -> str:
    """Without the values that stand under a secret name."""
    parts: list[str] = []
    done = 0
    while (found := names.search(text, done)) is not None:
        start = found.end()
        parts.append(text[done:start])
        if text.startswith(hidden, start):  # a text may come by here twice
            done = start
            continue
        done = _value_end(text, start, header=_HEADER.search(found[1]) is not None)
        value = text[start:done]
        parts.append(value if _TELLING.fullmatch(value) else hidden)
    return "".join(parts) + text[done:] if parts else text


def _value_end(text: str, start: int, *, header: bool) -> int:
    """Where the value that begins here ends. What was opened and not closed goes to the end of the text."""
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
    found = pattern.match(text, start)
    return start if found is None else found.end()


def _closing(text: str, start: int) -> int:
    """The end of what is in brackets; brackets within quotes do not count."""
    depth, at = 0, start
    while (found := _BRACKETS.search(text, at)) is not None:
        at = found.end()
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}":
            depth -= 1
            if depth == 0:
                return at
        else:
            closed = _REST_OF_TEXT[found[0]].match(text, at)
            at = closed.end() if closed else len(text)
    return len(text)
