"""The options of ``holdfast serve`` about a reverse proxy: trusted addresses, and the headers that name the user."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast import config
from holdfast.errors import InvalidSetting


def check_trusted(addresses: Sequence[str]) -> list[str]:
    """Check the addresses of trusted proxies: addresses and networks, but not all networks."""
    for address in addresses:
        try:
            network = ipaddress.ip_network(address, strict=False)
        except ValueError:
            raise InvalidSetting(
                f"{address!r} is not the address of a proxy",
                code="invalid_proxy",
                fix="Use an address or a network: 10.0.0.0/8.",
            ) from None
        if network.prefixlen == 0:
            raise InvalidSetting('"*" is not the address of a proxy', code="invalid_proxy")
    return list(addresses)


@dataclass(frozen=True)
class ProxyLogin:
    """Headers of a reverse proxy that say who the user is."""

    trusted: Sequence[str]
    user: str
    groups: str | None
    roles: str
    tenant: str | None


def proxy_login(
    trusted: Sequence[str], user: str | None, groups: str | None, roles: str | None, tenant: str | None, *, local: bool
) -> ProxyLogin | None:
    """Check the options about headers. They are believed only from a proxy whose address is named."""
    if user is None:
        if groups is not None or roles is not None:
            raise InvalidSetting("--proxy-groups and --proxy-roles need --proxy-user", code="conflicting_options")
        return None
    if local or config.sign_on():
        raise InvalidSetting(
            "--proxy-user cannot be combined with --no-auth or single sign-on", code="conflicting_options"
        )
    if not trusted:
        raise InvalidSetting(
            "refusing to believe the header of any caller: --proxy-user needs the address of the proxy",
            code="proxy_required",
            fix="Name it: --trust-proxy 10.0.0.5.",
        )
    if roles is None:
        raise InvalidSetting(
            "--proxy-user needs --proxy-roles", code="conflicting_options", fix="Such as --proxy-roles '*=viewer'."
        )
    return ProxyLogin(trusted, user, groups, roles, tenant)
