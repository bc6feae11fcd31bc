"""The configuration of the Django app ``holdfast``: it creates the tables in ``manage.py migrate`` and adds checks."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import pre_migrate

from holdfast.app.internals import session_of


class HoldfastConfig(AppConfig):
    name = "holdfast.integrations.django"
    label = "holdfast"
    verbose_name = "Holdfast"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from holdfast.integrations.django.checks import check_settings, check_tables

        pre_migrate.connect(create_tables, sender=self)
        checks.register(check_settings)
        checks.register(check_tables, checks.Tags.database)


def create_tables(using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Migrate the schema before Django's migrations run, because those may enqueue jobs."""
    from holdfast.integrations.django.application import get_app
    from holdfast.integrations.django.orm_connection import migrate

    app = get_app()
    if using != app.alias:
        return
    app.session.follow()
    migrate(session_of(app).store, app.alias)
    if verbosity >= 2:
        print("  Holdfast: the schema is up to date.", file=stdout)
