"""A URL, taken apart once: what is judged and what is connected to come from the same reading.

Two programs that read a URL differently are how guards are got around, so what is doubtful is refused: control
characters, spaces, backslashes, a user or a password, a zone, a percent sign in the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

from holdfast.errors import EgressRefused, InvalidSetting

URL_LIMIT: Final = 8_192
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_DOUBTFUL: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]")
_NETLOC: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@%]+)(?::([0-9]{1,5}))?")
_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_][a-z0-9_-]{0,62})*")
_SAFE: Final = "/%:@!$&'()*+,;=~-._?"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes. ``host`` is what the name is resolved by, checked by TLS, and compared with lists."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: object) -> Target:
        if not isinstance(url, str) or not url or len(url) > URL_LIMIT:
            raise refused(f"a URL is text of at most {URL_LIMIT:,} characters")
        if _DOUBTFUL.search(url):
            raise refused("the URL has spaces, control characters or backslashes in it")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise refused("this is no URL") from None
        scheme = parts.scheme.lower()
        if "@" in parts.netloc:
            raise refused("the URL names a user or a password", fix="Send credentials in a header, by a secret's name.")
        found = _NETLOC.fullmatch(parts.netloc)
        if scheme not in DEFAULT_PORTS or found is None:
            raise refused("the URL is not http(s)://host[:port]/…")
        port = int(found[2]) if found[2] else DEFAULT_PORTS[scheme]
        if not 1 <= port <= 65_535:
            raise refused("the port is a number from 1 to 65535")
        path = quote(parts.path or "/", safe=_SAFE)
        query = "?" + quote(parts.query, safe=_SAFE) if parts.query else ""
        return cls(scheme, _host(found[1]), port, path + query)

    def joined(self, location: str) -> Target:
        """Where a redirect leads."""
        return Target.of(urljoin(f"{self.origin}{self.path}", location))

    @property
    def is_v6(self) -> bool:
        return ":" in self.host

    @property
    def authority(self) -> str:
        """As the header Host names it."""
        host = f"[{self.host}]" if self.is_v6 else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """What may be shown: a path or a query can hold a secret."""
        return f"{self.scheme}://{self.authority}"


def _host(text: str) -> str:
    if text.startswith("["):
        try:
            return IPv6Address(text[1:-1]).compressed
        except ValueError:
            raise refused("the URL's host is no IPv6 address") from None
    name = (text if text.isascii() else _ascii(text)).lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise refused("the URL's host is no name")
    return name


def _ascii(name: str) -> str:
    """By the rules for names in other scripts, after which it is a name, or an address, like any other."""
    try:
        import idna
    except ImportError:
        raise missing_extra() from None
    try:
        return idna.encode(name, uts46=True).decode("ascii")
    except idna.IDNAError:
        raise refused("the URL's host is no name") from None


def missing_extra() -> InvalidSetting:
    return InvalidSetting(
        "outgoing HTTP needs an extra that is not installed", code="missing_extra", fix="pip install 'holdfast[http]'"
    )


def refused(why: str, *, fix: str | None = None) -> EgressRefused:
    return EgressRefused(why, fix=fix)
