"""The egress policy: addresses that must not be reached, and the parser of URLs.

The addresses are a table from IANA's registries of special-purpose addresses. ``ipaddress.is_global`` is not used: it
has changed between releases of Python, and ignores addresses that contain another one. Here those are unwrapped, and
every layer is checked. For IPv6 the rule is reversed: only addresses in IANA's global unicast space (2000::/3) may be
reached, without the special ones in it.

A URL is parsed once, and both the checks and the connection use the result: guards are bypassed where two programs read
a URL differently. For the same reason ambiguous URLs are refused: with control characters, spaces, backslashes, a user
or password, a zone, or a percent sign in the host.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address, ip_network
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urljoin, urlsplit

from holdfast.errors import EgressRefused, InvalidSetting

if TYPE_CHECKING:
    import ssl


from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_V4: Final = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by a provider",
    "127.0.0.0/8": "this machine",
    "168.63.129.16/32": "a cloud's own services",  # public by the registry, but used by Azure's hosts
    "169.254.0.0/16": "link-local, where clouds keep credentials",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "for protocols",
    "192.0.2.0/24": "for documentation",
    "192.31.196.0/24": "for protocols",
    "192.52.193.0/24": "for protocols",
    "192.88.99.0/24": "a relay of 6to4",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "for protocols",
    "198.18.0.0/15": "for measurements",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, or broadcast",
}
_V6: Final = {
    "::/128": "no address",
    "::1/128": "this machine",
    "::/96": "an IPv4 address in an outdated form",
    "64:ff9b:1::/48": "a translation of the local network",
    "100::/64": "discard-only",
    "2001::/23": "for protocols",
    "2001:db8::/32": "for documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "for protocols",
    "3fff::/20": "for documentation",
    "5f00::/16": "for routing",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
_TABLE: Final = tuple((ip_network(text), why) for text, why in (_V4 | _V6).items())
_GLOBAL: Final = IPv6Network("2000::/3")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/96")
_TRANSPARENT: Final = (_MAPPED, _NAT64)
"""Only the address inside is checked: packets are sent there."""
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_TEREDO: Final = IPv6Network("2001::/32")
_COMPATIBLE: Final = IPv6Network("::/96")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


def refusal(text: str, allow: Iterable[Network] = (), deny: Iterable[Network] = ()) -> str | None:
    """The reason why this address may not be reached, or None. ``deny`` takes precedence over ``allow``, and ``allow``
    over the table. All are checked for the address and for every address inside it."""
    try:
        address = ip_address(text)
    except ValueError:
        return f"{text!r} is not an address"
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return f"{address} belongs to one link"
    for layer in (address, *_carried(address)):
        why = _layer_refusal(layer, tuple(allow), tuple(deny))
        if why is not None:
            return f"{address} is {why}" if layer == address else f"{address} carries {layer}, which is {why}"
    return None


def _layer_refusal(address: Address, allow: tuple[Network, ...], deny: tuple[Network, ...]) -> str | None:
    if any(address in network for network in deny):
        return "not to be reached from here"
    if any(address in network for network in allow):
        return None
    if isinstance(address, IPv6Address) and any(address in network for network in _TRANSPARENT):
        return None
    for network, why in _TABLE:
        if address in network:
            return why
    return "reserved" if isinstance(address, IPv6Address) and address not in _GLOBAL else None


def _carried(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses inside, to which a gateway might forward the packet."""
    if isinstance(address, IPv4Address):
        return
    number = int(address)
    last = IPv4Address(number & 0xFFFFFFFF)
    if address in _COMPATIBLE and number > 1:
        yield last
    if any(address in network for network in (_MAPPED, _NAT64, _LOCAL_NAT64)):
        yield last
    if address in _SIX_TO_FOUR:
        yield IPv4Address((number >> 80) & 0xFFFFFFFF)
    if address in _TEREDO:
        yield IPv4Address((number >> 64) & 0xFFFFFFFF)  # its server
        yield IPv4Address(~number & 0xFFFFFFFF)  # its client, with all bits inverted
    if (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield last


URL_LIMIT: Final = 8_192
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_AMBIGUOUS: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029]")
_NETLOC: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@%]+)(?::([0-9]{1,5}))?")
_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_][a-z0-9_-]{0,62})*")
_SAFE: Final = "/%:@!$&'()*+,;=~-._?"


@dataclass(frozen=True, slots=True)
class Target:
    """The parsed URL of a request. ``host`` is the name that is resolved, checked by TLS and compared with lists."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: object) -> Target:
        if not isinstance(url, str) or not url or len(url) > URL_LIMIT:
            raise refused(f"a URL is text of at most {URL_LIMIT:,} characters")
        if _AMBIGUOUS.search(url):
            raise refused("the URL has spaces, control characters or backslashes in it")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise refused("this is not a URL") from None
        scheme = parts.scheme.lower()
        if "@" in parts.netloc:
            raise refused("the URL names a user or a password", fix="Send credentials in a header, by a secret's name.")
        netloc = _NETLOC.fullmatch(parts.netloc)
        if scheme not in DEFAULT_PORTS or netloc is None:
            raise refused("the URL is not http(s)://host[:port]/…")
        port = int(netloc[2]) if netloc[2] else DEFAULT_PORTS[scheme]
        if not 1 <= port <= 65_535:
            raise refused("the port is a number from 1 to 65535")
        path = quote(parts.path or "/", safe=_SAFE)
        query = "?" + quote(parts.query, safe=_SAFE) if parts.query else ""
        return cls(scheme, _host(netloc[1]), port, path + query)

    def joined(self, location: str) -> Target:
        """The target of a redirect."""
        return Target.of(urljoin(f"{self.origin}{self.path}", location))

    @property
    def is_v6(self) -> bool:
        return ":" in self.host

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if self.is_v6 else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The part of the URL that may be shown: a path or a query can contain a secret."""
        return f"{self.scheme}://{self.authority}"


def _host(text: str) -> str:
    if text.startswith("["):
        try:
            return IPv6Address(text[1:-1]).compressed
        except ValueError:
            raise refused("the URL's host is not an IPv6 address") from None
    name = (text if text.isascii() else _ascii(text)).lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise refused("the URL's host is not a valid name")
    return name


def _ascii(name: str) -> str:
    """The ASCII form of an internationalized name. The result is checked like any other name or address."""
    try:
        import idna
    except ImportError:
        raise missing_extra() from None
    try:
        return idna.encode(name, uts46=True).decode("ascii")
    except idna.IDNAError:
        raise refused("the URL's host is not a valid name") from None


def missing_extra() -> InvalidSetting:
    return InvalidSetting(
        "outgoing HTTP needs an extra that is not installed", code="missing_extra", fix="pip install 'holdfast[http]'"
    )


def refused(why: str, *, fix: str | None = None) -> EgressRefused:
    return EgressRefused(why, fix=fix)


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a name and a port to addresses as text; for a custom resolver."""

LONGEST: Final = 600.0
LARGEST: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPolicy:
    """Limits of outgoing requests.

    ``allow`` opens networks that are closed by default (``("10.1.2.0/24",)``), ``deny`` closes more. ``hosts``, if
    given, are the only allowed hosts: a name, or ``*.example.com`` for all names below it, with an optional port
    (``api.example.com:8443``) that is allowed in addition to ``ports``. ``own_hosts`` are those of a tenant; a host
    must be in both lists. Times are in seconds: ``connect`` for each connection, ``read`` between two pieces of a
    response, ``total`` for everything, redirects included. ``max_bytes`` limits the received body, and again the
    decompressed body. With ``cut`` a body that is too long, too late or broken off is cut; without it the response is
    refused. With ``plain_secrets`` connectors may send secrets over http, where others can read them. ``proxy`` is your
    own proxy, which may check again; the proxy settings of the environment are not used.
    """

    schemes: tuple[str, ...] = ("https", "http")
    ports: tuple[int, ...] = (80, 443)
    hosts: tuple[str, ...] = ()
    own_hosts: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    connect: float = 5.0
    read: float = 15.0
    total: float = 30.0
    max_bytes: int = 1_048_576
    max_header_bytes: int = 32_768
    max_request_bytes: int = 10_485_760
    redirects: int = 0
    cut: bool = False
    plain_secrets: bool = False
    proxy: str | None = field(default=None, repr=False)
    resolver: Resolver | None = field(default=None, repr=False, compare=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    open_networks: tuple[Network, ...] = field(init=False, repr=False, compare=False)
    closed_networks: tuple[Network, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.schemes or set(self.schemes) - {"http", "https"}:
            raise _invalid("schemes are http and https")
        if not all(1 <= port <= 65_535 for port in self.ports):
            raise _invalid("ports are numbers from 1 to 65535")
        for name in ("connect", "read", "total"):
            if not 0 < getattr(self, name) <= LONGEST:
                raise _invalid(f"{name} is more than 0 and at most {LONGEST:.0f} seconds")
        for name in ("max_bytes", "max_header_bytes", "max_request_bytes"):
            if not 0 < getattr(self, name) <= LARGEST:
                raise _invalid(f"{name} is more than 0 and at most {LARGEST:,} bytes")
        if not 0 <= self.redirects <= 10:
            raise _invalid("redirects are from 0 to 10")
        object.__setattr__(self, "open_networks", _networks(self.allow))
        object.__setattr__(self, "closed_networks", _networks(self.deny))

    def redirecting(self, times: int) -> EgressPolicy:
        """The same policy, but following up to this many redirects (at most ten), each checked like the first
        request."""
        return replace(self, redirects=min(max(times, 0), 10))

    def secure(self) -> EgressPolicy:
        """The same policy with https only, also for redirects."""
        return replace(self, schemes=("https",))

    def check(self, target: Target) -> None:
        """Check the parts of the URL. The addresses of the host are checked after it is resolved."""
        if target.scheme not in self.schemes:
            raise refused(f"{target.scheme} is not among the schemes that may be used")
        named = [split_host(host) for host in (*self.hosts, *self.own_hosts)]
        if target.port not in self.ports and not any(port == target.port for host, port in named if fits(host, target)):
            raise refused(f"port {target.port} is not among those that may be used")
        for listed in (self.hosts, self.own_hosts):
            if listed and not any(
                fits(host, target) and port in (None, target.port) for host, port in map(split_host, listed)
            ):
                raise refused(f"{target.host} is not among the hosts that may be reached")


def split_host(text: str) -> tuple[str, int | None]:
    """``api.example.com:8443`` as a host and a port."""
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.endswith("]")):
        return host.strip("[]"), int(port)
    return text.strip("[]"), None


def fits(pattern: str, target: Target) -> bool:
    if pattern.startswith("*."):
        return target.host.endswith(pattern[1:]) and len(target.host) >= len(pattern)
    return pattern == target.host


def _networks(texts: Sequence[str]) -> tuple[Network, ...]:
    if isinstance(texts, str):
        raise _invalid("networks are a list of text, such as 10.1.2.0/24")
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise _invalid(f"{error}") from None


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(f"outgoing HTTP: {why}", code="invalid_egress")
