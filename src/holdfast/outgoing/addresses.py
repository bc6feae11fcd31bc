"""Addresses that must not be reached: a table from IANA's registries of special-purpose addresses.

``ipaddress.is_global`` is not used: it has changed between releases of Python, and ignores addresses that contain
another one. Here those are unwrapped, and every layer is checked. For IPv6 the rule is reversed: only addresses in
IANA's global unicast space (2000::/3) may be reached, without the special ones in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

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
