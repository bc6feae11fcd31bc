"""Whether an unsafe request came from a page of our own (rule 22), and whether it was sent to us by our own name."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


def comes_from_here(request: Request) -> bool:
    """By Sec-Fetch-Site, which pages cannot forge, or else by Origin. A program that sends neither is no browser, and
    is believed only on the local machine, where no cookie was needed."""
    said = _said(request)
    return "cookie" not in request.headers if said is None else said


def comes_from_elsewhere(request: Request) -> bool:
    """Whether a browser says so itself."""
    return _said(request) is False


def _said(request: Request) -> bool | None:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return None if origin is None else urlsplit(origin).netloc == request.headers.get("host")


def is_local(request: Request) -> bool:
    """From this machine, and by one of its own names: another site's name that leads here (rebinding) is none."""
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() not in LOCAL_NAMES:
        return False
    client = request.client
    if client is None:
        return True
    try:
        return ipaddress.ip_address(client.host).is_loopback
    except ValueError:
        return client.host == "testclient"
