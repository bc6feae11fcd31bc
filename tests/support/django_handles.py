"""Django without a project: connections to whatever database a test has, each under an alias of its own."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import django
from django.conf import settings
from django.db import connections
from django.db.utils import ConnectionHandler
from django.utils.connection import ConnectionProxy

_numbers = itertools.count(1)


def django_connection(url: str, *, proxied: bool = False) -> Any:
    """``connections["alias"]`` for this database, or the kind of proxy that ``django.db.connection`` is."""
    alias = f"test_{next(_numbers)}"
    _set(alias, url)
    return ConnectionProxy(connections, alias) if proxied else connections[alias]


def make_default(url: str) -> None:
    """``django.db.connection`` is one to this database from now on."""
    _set("default", url)
    if hasattr(connections._connections, "default"):
        connections["default"].close()
        del connections["default"]


def _set(alias: str, url: str) -> None:
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    connections.settings[alias] = ConnectionHandler({"default": _settings(url)}).settings["default"]


def _settings(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": query.get("host") or parts.hostname or "",
        "PORT": query.get("port") or parts.port or "",
    }
