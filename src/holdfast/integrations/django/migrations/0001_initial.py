"""Permissions only. Holdfast's own migrator creates its tables before Django's migrations run (see ``apps.py``)."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

PERMISSIONS = (
    ("view_dashboard", "Can view jobs and the dashboard"),
    ("change_dashboard", "Can cancel, redrive, pause and decide in the dashboard"),
)


def unmanaged(name: str, plural: str, **options: Any) -> migrations.CreateModel:
    identity = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")
    common = {"abstract": False, "managed": False, "default_permissions": (), "base_manager_name": "objects"}
    return migrations.CreateModel(
        name=name, fields=[("id", identity)], options={"verbose_name_plural": plural, **options, **common}
    )


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[Any]] = []

    operations: ClassVar[list[Any]] = [
        unmanaged("Approval", "approvals"),
        unmanaged("DeadLetter", "dead letters"),
        unmanaged("Job", "jobs", permissions=PERMISSIONS),
        unmanaged("Schedule", "schedules"),
    ]
