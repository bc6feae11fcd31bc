"""Holdfast in a Django project: a backend for Django's tasks, migrations, commands, admin pages and the dashboard.

Add ``holdfast.integrations.django`` to ``INSTALLED_APPS`` and name ``HoldfastBackend`` in ``TASKS``. ``app`` is the
``App`` on Django's database, for native jobs: ``@app.job``. docs/guides/django.md explains it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.integrations.django.application import DjangoApp
    from holdfast.integrations.django.application import get_app as get_app
    from holdfast.integrations.django.backend import HoldfastBackend as HoldfastBackend
    from holdfast.integrations.django.backend import HoldfastTask as HoldfastTask

    app: DjangoApp

__all__ = ["HoldfastBackend", "HoldfastTask", "app", "get_app"]


def __getattr__(name: str) -> Any:
    """Import on first use: Django imports this package before its settings and its app registry are ready."""
    if name in ("app", "get_app"):
        from holdfast.integrations.django import application

        return application.get_app() if name == "app" else application.get_app
    if name in ("HoldfastBackend", "HoldfastTask"):
        from holdfast.integrations.django import backend

        return getattr(backend, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
