"""Models without tables, for permissions and entries in the admin. The lists are read through ``App``."""

from __future__ import annotations

from typing import Any

from django.db import models


class NoRows(models.Manager):
    """Reads no table, because there is none: ``manage.py dumpdata`` reads the rows of every model."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().none()


class _Listed(models.Model):
    objects = NoRows()

    class Meta:
        abstract = True
        managed = False
        default_permissions = ()
        base_manager_name = "objects"


class Job(_Listed):
    class Meta(_Listed.Meta):
        abstract = False
        verbose_name_plural = "jobs"
        permissions: Any = (
            ("view_dashboard", "Can view jobs and the dashboard"),
            ("change_dashboard", "Can cancel, redrive, pause and decide in the dashboard"),
        )


class DeadLetter(_Listed):
    class Meta(_Listed.Meta):
        abstract = False
        verbose_name_plural = "dead letters"


class Approval(_Listed):
    class Meta(_Listed.Meta):
        abstract = False
        verbose_name_plural = "approvals"


class Schedule(_Listed):
    class Meta(_Listed.Meta):
        abstract = False
        verbose_name_plural = "schedules"
