"""Django in this process: settings, and connections to the database of a test under an alias."""

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

SETTINGS: dict[str, Any] = {
    "USE_TZ": True,
    "SECRET_KEY": "tests",
    "ALLOWED_HOSTS": ["testserver"],
    "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
    "INSTALLED_APPS": [
        *("django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes"),
        *("django.contrib.messages", "django.contrib.sessions"),
        *(() if django.VERSION >= (6, 0) else ("django_tasks",)),
        *("holdfast.integrations.django", "tests.integrations.django.shop"),
    ],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    "ROOT_URLCONF": "tests.integrations.django.shop.urls",
    "STATIC_URL": "static/",
    "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
    "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    "TASKS": {"default": {"BACKEND": "holdfast.integrations.django.HoldfastBackend", "QUEUES": []}},
}


def set_up() -> None:
    """Configure Django once per process."""
    if not settings.configured:
        settings.configure(**SETTINGS)
        django.setup()


def django_connection(url: str, *, proxied: bool = False) -> Any:
    """``connections["alias"]`` for this database, or a proxy like ``django.db.connection``."""
    alias = f"test_{next(_numbers)}"
    _set(alias, url)
    return ConnectionProxy(connections, alias) if proxied else connections[alias]


def make_default(url: str, **options: Any) -> None:
    """Connect ``django.db.connection`` to this database, with options such as ``CONN_MAX_AGE``."""
    _set("default", url, options)
    if hasattr(connections._connections, "default"):
        connections["default"].close()
        del connections["default"]


def _set(alias: str, url: str, options: dict[str, Any] | None = None) -> None:
    set_up()
    settings = {**_settings(url), **(options or {})}
    connections.settings[alias] = ConnectionHandler({"default": settings}).settings["default"]


def _settings(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        options = {"transaction_mode": "IMMEDIATE", "timeout": 30}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///"), "OPTIONS": options}
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
