"""Read-only lists in Django's admin, with links to the dashboard if it is mounted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from holdfast.app.internals import session_of
from holdfast.engine.states import State
from holdfast.integrations.django.application import DjangoApp, get_app
from holdfast.integrations.django.dashboard_view import scopes_for
from holdfast.integrations.django.models import Approval, DeadLetter, Job, Schedule
from holdfast.stores.requests import JobFilter

PAGE = 50
Row = tuple[str, Sequence[Any]]
"""The path of an entry in the dashboard, and its cells."""


class ListAdmin(admin.ModelAdmin):
    """A list that ``rows`` reads through the app. Nothing can be added, changed or deleted here."""

    columns: ClassVar[tuple[str, ...]] = ()
    section = ""
    """The path of the list in the dashboard."""

    def rows(self, app: DjangoApp, request: HttpRequest) -> list[Row]:
        raise NotImplementedError

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            root = reverse("holdfast:dashboard")
        except NoReverseMatch:  # the dashboard is not mounted
            root = ""
        rows = self.rows(get_app(), request)
        context = {
            **self.admin_site.each_context(request),
            "title": str(self.opts.verbose_name_plural).capitalize(),
            "opts": self.opts,
            "columns": self.columns,
            "rows": [(root and f"{root}{path}", cells) for path, cells in rows],
            "dashboard": root and f"{root}{self.section}",
            "limit": PAGE,
            "full": len(rows) >= PAGE,
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/holdfast/list.html", context)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(scopes_for(request.user))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(scopes_for(request.user))

    def has_add_permission(self, *_: Any) -> bool:
        return False

    has_change_permission: Callable[..., bool] = has_add_permission
    has_delete_permission: Callable[..., bool] = has_add_permission


@admin.register(Job)
class JobAdmin(ListAdmin):
    columns = ("Kind", "State", "Queue", "Attempt", "Enqueued", "Finished", "Error")
    section = "jobs"
    only: State | None = None

    def rows(self, app: DjangoApp, request: HttpRequest) -> list[Row]:
        filters = JobFilter(tenant=app.session.tenant, state=self.only, limit=PAGE, payloads=False)
        return [
            (
                f"jobs/{job.id}",
                (job.kind, job.state, job.queue, job.attempt, job.created_at, job.finished_at, job.error_code),
            )
            for job in app.session.read(session_of(app).store.jobs.list(filters))
        ]


@admin.register(DeadLetter)
class DeadLetterAdmin(JobAdmin):
    section = "dead-letters"
    only = State.DEAD_LETTER


@admin.register(Approval)
class ApprovalAdmin(ListAdmin):
    columns = ("Summary", "Name", "Job", "Opened", "Expires")
    section = "approvals"

    def rows(self, app: DjangoApp, request: HttpRequest) -> list[Row]:
        return [
            (
                f"approvals/{approval.id}",
                (approval.summary, approval.name, approval.job_id, approval.opened_at, approval.expires_at),
            )
            for approval in app.approvals.list()[:PAGE]
        ]


@admin.register(Schedule)
class ScheduleAdmin(ListAdmin):
    columns = ("Name", "Kind", "Timing", "Next run")
    section = "schedules"

    def rows(self, app: DjangoApp, request: HttpRequest) -> list[Row]:
        return [
            (f"schedules/{schedule.name}", (schedule.name, schedule.kind, schedule.timing, schedule.next_fire_at))
            for schedule in app.schedules.list()[:PAGE]
        ]
