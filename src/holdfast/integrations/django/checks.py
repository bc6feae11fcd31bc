"""System checks of ``manage.py check``; with ``--database`` they include the tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from holdfast.app.internals import session_of
from holdfast.errors import HoldfastError
from holdfast.integrations.django.application import SETTINGS, get_app
from holdfast.integrations.django.orm_connection import SQLITE, is_in_memory, url_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.integrations.django.backend import HoldfastBackend

APP = "holdfast.integrations.django"


def check_backend(backend: HoldfastBackend) -> list[Any]:
    """Check that the app of a backend in ``TASKS`` is installed."""
    if apps.is_installed(APP):
        return []
    return [
        checks.Error(
            f"TASKS names Holdfast for {backend.alias!r}, and the app is not installed.",
            hint=f"Add {APP!r} to INSTALLED_APPS: manage.py migrate creates the tables then.",
            id="holdfast.E002",
        )
    ]


def check_settings(app_configs: Sequence[Any] | None = None, **_: Any) -> list[Any]:
    """Check ``settings.HOLDFAST`` and the database that it names."""
    options = getattr(settings, "HOLDFAST", {})
    unknown = sorted(options.keys() - SETTINGS)
    if unknown:
        return [
            checks.Error(
                f"HOLDFAST has unknown keys: {', '.join(unknown)}.",
                hint=f"It may have {', '.join(sorted(SETTINGS))}.",
                id="holdfast.E003",
            )
        ]
    alias = options.get("DATABASE", DEFAULT_DB_ALIAS)
    try:
        url_of(alias)
    except (ImproperlyConfigured, LookupError) as error:
        return [checks.Error(str(error), id="holdfast.E001")]
    except Exception as error:  # ConnectionDoesNotExist is not a LookupError
        return [checks.Error(f"HOLDFAST names a database that is not in DATABASES: {error}", id="holdfast.E001")]
    wrapper = connections[alias]
    mode = wrapper.settings_dict.get("OPTIONS", {}).get("transaction_mode") if wrapper.vendor == SQLITE else "IMMEDIATE"
    if str(mode).upper() != "IMMEDIATE":
        return [
            checks.Warning(
                "Transactions on SQLite do not take the write lock when they begin.",
                hint='A transaction that reads and then enqueues can fail with "database is locked" while a worker '
                f'writes. Set DATABASES[{alias!r}]["OPTIONS"] = {{"transaction_mode": "IMMEDIATE"}}.',
                id="holdfast.W001",
            )
        ]
    return []


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[Any]:
    """Check that the schema is current. Runs with ``manage.py check --database default``."""
    app = get_app()
    migrating = sys.argv[1:2] == ["migrate"]  # it runs the checks before it creates the tables
    if migrating or app.alias not in (databases or ()) or is_in_memory(app.alias):
        return []
    try:
        app.session.follow()
        current = session_of(app).store.schema().current
    except HoldfastError:  # the database is unreachable, which Django reports
        return []
    if current:
        return []
    return [
        checks.Warning(
            "The tables of Holdfast are missing or out of date.",
            hint="Run: python manage.py migrate",
            id="holdfast.W002",
        )
    ]
