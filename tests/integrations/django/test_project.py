"""A Django project with Holdfast: migrations, checks, the command, the admin, the dashboard and the test helpers."""

from __future__ import annotations

import json
import logging
import shutil
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client, RequestFactory, TestCase, TransactionTestCase, override_settings

import holdfast
from holdfast.app.internals import session_of
from holdfast.cli import output
from holdfast.integrations.django import checks, dashboard_view, worker
from holdfast.integrations.django.admin import JobAdmin
from holdfast.integrations.django.management.commands.holdfast import _as_managed
from holdfast.integrations.django.models import Job
from holdfast.integrations.django.orm_connection import url_of
from holdfast.integrations.django.test import HoldfastMixin, arun_jobs
from holdfast.integrations.django.worker import load
from tests.integrations.django.shop.models import Order
from tests.integrations.django.shop.tasks import app, fulfil, pack, seen, ship, stocktake
from tests.support.django_setup import make_default

pytestmark = pytest.mark.req("HF-8")


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as ``manage.py migrate`` leaves it, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "jobs.db"
    make_default(f"sqlite:///{path}")
    call_command("migrate", verbosity=0, run_syncdb=True)
    connections.close_all()
    app.session.store.close()
    return path


@pytest.fixture
def project(migrated: Path, new_sqlite_url: str) -> Iterator[str]:
    shutil.copyfile(migrated, new_sqlite_url.removeprefix("sqlite:///"))
    make_default(new_sqlite_url)
    yield new_sqlite_url
    dashboard_view.close_bridge()
    connections.close_all()
    app.session.store.close()


def codes(messages: Any) -> list[str]:
    return [message.id for message in messages]


def test_migrate_creates_the_tables_and_the_permissions(project: str) -> None:
    assert session_of(app).store.schema().current
    assert codes(checks.check_tables(["default"])) == []
    named = Permission.objects.filter(content_type__app_label="holdfast").values_list("codename", flat=True)
    assert sorted(named) == ["change_dashboard", "view_dashboard"]
    call_command("makemigrations", "holdfast", check=True, dry_run=True, verbosity=0)
    call_command("migrate", verbosity=0, run_syncdb=True)  # again: nothing to do
    assert ship.enqueue(1).id


@pytest.mark.slow
def test_migrate_creates_the_postgres_schema(empty_postgres_url: str) -> None:
    make_default(empty_postgres_url)
    try:
        app.session.follow()
        assert codes(checks.check_tables(["default"])) == ["holdfast.W002"]
        call_command("migrate", verbosity=0, run_syncdb=True)
        assert codes(checks.check_tables(["default"])) == []
    finally:
        connections.close_all()
        app.session.store.close()


def test_system_checks_report_misconfiguration(file: str) -> None:
    assert codes(checks.check_settings()) == []
    with override_settings(HOLDFAST={"DATABSE": "other"}):
        assert codes(checks.check_settings()) == ["holdfast.E003"]
    with override_settings(HOLDFAST={"DATABASE": "other"}):
        assert codes(checks.check_settings()) == ["holdfast.E001"]
    with override_settings(INSTALLED_APPS=["django.contrib.contenttypes"]):
        assert codes(checks.check_backend(ship.get_backend())) == ["holdfast.E002"]
    connections["default"].settings_dict["OPTIONS"] = {}
    assert codes(checks.check_settings()) == ["holdfast.W001"]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"HOST": "db", "PORT": 5433, "USER": "a@b", "PASSWORD": "p/w", "NAME": "shop"}, "a%40b:p%2Fw@db:5433/shop"),
        (
            {"HOST": "/var/run/pg", "PORT": "", "USER": "", "PASSWORD": "", "NAME": "shop"},
            "/shop?host=%2Fvar%2Frun%2Fpg",
        ),
        (
            {"NAME": "", "OPTIONS": {"service": "shop", "pool": True, "sslmode": "require"}},
            "/?service=shop&sslmode=require",
        ),
    ],
)
def test_postgres_url_is_built_from_the_django_settings(
    given: dict[str, Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrapper:
        vendor, settings_dict = "postgresql", given

    monkeypatch.setattr("holdfast.integrations.django.orm_connection.connections", {"shop": Wrapper()})
    assert url_of("shop") == f"postgresql://{url}"


def test_management_command_uses_the_django_database(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:////another.db")  # of another program
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])  # the command line sets up its own
    order = Order.objects.create(email="a@b.c")
    result = ship.enqueue(order.pk)
    call_command("holdfast", "tick", "--json")
    assert json.loads(capsys.readouterr().out)["succeeded"] == 1
    call_command("holdfast", "jobs", "show", result.id, "--json")
    assert json.loads(capsys.readouterr().out)["job"]["kind"] == ship.module_path
    with pytest.raises(CommandError):
        call_command("holdfast", "jobs", "show", "01a1e8de-6817-7002-8018-be86ac821882")


def test_the_commands_named_in_messages_are_those_of_manage_py(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = ship.enqueue(1)
    call_command("holdfast", "why", job.id)
    assert "→ Start one: python manage.py holdfast worker\n" in capsys.readouterr().out
    with pytest.raises(CommandError):
        call_command("holdfast", "operations", "start", "purge")
    assert "See: python manage.py holdfast operations start --help" in capsys.readouterr().err
    with output.renamed_commands(_as_managed):
        assert output.advice("Run: holdfast migrate") == "Run: python manage.py migrate"
        assert output.advice("See: manage.py holdfast health") == "See: manage.py holdfast health"
    assert output.advice("Run: holdfast migrate") == "Run: holdfast migrate"


def test_the_command_reads_the_schema_and_tenant_of_the_settings(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.session, "scope", "acme")
    with app.tenant("default"):
        ship.enqueue(1)
    with app.tenant("acme"):
        ship.enqueue(2)
    for given, count in (((), 1), (("--tenant", "default"), 1), (("--all-tenants",), 2)):
        call_command("holdfast", "jobs", "list", "--json", *given)
        assert len(json.loads(capsys.readouterr().out)) == count, given
    if database.startswith("postgresql"):
        monkeypatch.setattr(app, "_schema", "other")
        with pytest.raises(CommandError):
            call_command("holdfast", "jobs", "list")
        assert "not_migrated" in capsys.readouterr().err


def test_dumpdata_and_loaddata(project: str, tmp_path: Path) -> None:
    Order.objects.create(email="a@b.c")
    ship.enqueue(1)
    for options in ({}, {"use_base_manager": True}):
        call_command("dumpdata", output=str(tmp_path / "all.json"), verbosity=0, **options)
        models = {entry["model"] for entry in json.loads((tmp_path / "all.json").read_text())}
        assert "shop.order" in models
        assert not {model for model in models if model.startswith("holdfast.")}
    Order.objects.all().delete()
    call_command("loaddata", str(tmp_path / "all.json"), verbosity=0)
    assert Order.objects.count() == 1


def test_flush_cancels_unfinished_jobs(
    project: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "no")
    job = ship.enqueue(1)
    call_command("flush")
    assert app.jobs.get(job.id).state is holdfast.State.QUEUED
    call_command("flush", interactive=False)
    assert "Holdfast: 1 unfinished job cancelled." in capsys.readouterr().out
    assert app.jobs.get(job.id).state is holdfast.State.CANCELLED
    call_command("flush", interactive=False)
    assert "Holdfast" not in capsys.readouterr().out


@pytest.mark.parametrize(("level", "shown"), [("warning", []), ("info", ["info"]), ("debug", ["debug", "info"])])
def test_log_level_of_a_worker_is_that_of_djangos_tasks(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, level: str, shown: list[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    monkeypatch.setattr(logging.getLogger("django"), "level", logging.INFO)  # as in Django's default settings
    tasks = logging.getLogger("django.tasks")
    monkeypatch.setattr(worker, "FRAMEWORK", tasks.name)  # the backport's logger is not below Django's
    monkeypatch.setattr(tasks, "level", logging.NOTSET)
    output.set_up(level, as_json=True)
    load()
    tasks.debug("Task id=7 enqueued")
    tasks.info("Task id=7 state=RUNNING")
    tasks.setLevel(logging.NOTSET)  # clears what loggers remember about levels
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines if line["logger"] == tasks.name] == shown


def test_a_worker_prints_each_line_of_django_once(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = logging.StreamHandler()  # as in Django's default settings
    monkeypatch.setattr(logging.getLogger("django"), "handlers", [console])
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    load()
    assert logging.getLogger("django").handlers == [console], "a program with its own logging keeps it"
    output.set_up("info", as_json=False)
    load()
    logging.getLogger("django.tasks").warning("Task id=7 state=RUNNING")
    assert capsys.readouterr().err.count("Task id=7") == 1


def test_dashboard_uses_django_permissions(project: str) -> None:
    job = ship.enqueue(1)
    client = Client()

    def cancel(site: str) -> int:
        path, form = f"/jobs/jobs/{job.id}/cancel", "application/x-www-form-urlencoded"
        return int(client.post(path, "confirmed=yes", form, headers={"sec-fetch-site": site}).status_code)

    assert client.get("/jobs/").status_code == 302
    anonymous = client.get("/jobs/api/v1/jobs")
    assert (anonymous.status_code, anonymous.json()["code"]) == (401, "unauthenticated")
    assert client.get("/jobs/api/v1/approvals/by-token/hfa_wrong").status_code == 404, "a token needs no login"
    reader, operator = (User.objects.create_user(name) for name in ("reader", "operator"))
    client.force_login(reader)
    assert client.get("/jobs/").status_code == 403
    reader.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
    operator.user_permissions.add(Permission.objects.get(codename="change_dashboard"))
    page = client.get(f"/jobs/jobs/{job.id}")
    assert page.status_code == 200
    assert ship.module_path in page.content.decode()
    assert "/jobs/static/" in page.content.decode(), "links stay below the mount"
    assert cancel("same-origin") == 403, "a reader may not"
    assert client.get("/jobs/live", headers={"accept": "text/event-stream"}).status_code == 204
    client.force_login(operator)
    assert cancel("cross-site") == 403, "another site's page may not"
    assert cancel("same-origin") == 303
    last = app.jobs.history(job.id)[-1]
    assert (last.to_state, last.actor) == ("cancelled", "operator")


def test_admin_lists_jobs(project: str) -> None:
    ship.enqueue(1)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    page = client.get("/admin/holdfast/job/").content.decode()
    assert ship.module_path in page
    assert f'href="/jobs/jobs/{app.jobs.list()[0].id}"' in page
    for name in ("deadletter", "approval", "schedule"):
        assert client.get(f"/admin/holdfast/{name}/").status_code == 200
    assert client.get("/admin/holdfast/job/add/").status_code == 403
    client.force_login(User.objects.create_user("clerk", is_staff=True))
    assert client.get("/admin/holdfast/job/").status_code == 403
    assert "holdfast" not in client.get("/admin/").content.decode()


class Plain:
    """A user of a model without ``PermissionsMixin``."""

    is_active = is_staff = is_authenticated = True
    is_anonymous = False
    pk = 1

    def get_username(self) -> str:
        return "plain"

    def has_usable_password(self) -> bool:
        return False


class Asked(Plain):
    def has_perm(self, name: str, obj: object = None) -> bool:
        return name == "holdfast.view_dashboard"

    def has_module_perms(self, label: str) -> bool:
        return True


def test_admin_of_users_without_permissions_mixin(project: str) -> None:
    request = RequestFactory().get("/admin/")
    request.session = {}
    for user, listed in ((Plain(), False), (Asked(), True)):
        request.user = user
        site = AdminSite()
        site.register(Job, JobAdmin)  # alone: others ask for has_perm, which the admin requires
        answer = site.index(request)
        assert ("Holdfast" in answer.rendered_content) is listed


class StepTests(HoldfastMixin):
    def test_a_sync_job_with_steps_and_an_approval(self) -> None:
        order = Order.objects.create(email="a@b.c")
        job = fulfil.enqueue(order.pk)
        assert self.run_jobs().paused == 1
        order.refresh_from_db()
        assert order.state != "shipped"
        [approval] = app.approvals.list()
        app.approvals.approve(approval.id, by="ada")
        assert self.run_jobs().succeeded == 1
        order.refresh_from_db()
        assert (order.state, job.result()) == ("shipped", "a@b.c")

    def test_every_call_with_which_a_sync_job_waits_for_the_loop(self) -> None:
        order = Order.objects.create(email="a@b.c")
        job = stocktake.enqueue(order.pk)
        assert self.run_jobs().succeeded == 1
        assert job.result() == ["a@b.c", "a@b.c", order.pk, "a@b.c", True]


class StepsInTransaction(StepTests, TestCase):
    async def test_steps_in_an_async_test(self) -> None:
        order = await Order.objects.acreate(email="a@b.c")
        job = await stocktake.aenqueue(order.pk)
        assert (await arun_jobs()).succeeded == 1
        assert (await sync_to_async(job.get)()).state is holdfast.State.SUCCEEDED


class StepsCommitted(StepTests, TransactionTestCase):
    available_apps = ("tests.integrations.django.shop",)


class InTransaction(HoldfastMixin, TestCase):
    def test_jobs_see_rows_of_the_test(self) -> None:
        order = Order.objects.create(email="a@b.c")
        pack.enqueue(order.pk)
        self.assert_enqueued(pack, order.pk)
        self.assert_enqueued(pack, order_id=order.pk)
        self.assert_not_enqueued(ship)
        with self.assertRaisesMessage(AssertionError, "was not enqueued with"):
            self.assert_enqueued(pack, 77)
        summary = self.run_jobs()
        assert summary.succeeded == 2, "including the task that it enqueued"
        order.refresh_from_db()
        assert order.state == "shipped"
        [job] = self.enqueued(ship)
        assert ship.get_result(job.id).return_value == ["a@b.c", "post"]

    def test_failed_job_fails_the_test(self) -> None:
        ship.enqueue(77)
        with self.assertRaisesMessage(AssertionError, "DoesNotExist") as failed:
            self.run_jobs()
        assert "in ship\n    order = Order.objects.get(pk=order_id)" in str(failed.exception), "the line that failed"


class WithTestData(HoldfastMixin, TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        cls.order = Order.objects.create(email="a@b.c")
        ship.enqueue(cls.order.pk)

    def test_jobs_of_the_test_data_wait(self) -> None:
        self.assert_not_enqueued()
        assert self.run_jobs().succeeded == 1
        assert Order.objects.get().state == "shipped"

    def test_in_each_test_again(self) -> None:
        self.test_jobs_of_the_test_data_wait()

    def test_a_failure_of_them_fails_the_test(self) -> None:
        Order.objects.all().delete()
        with self.assertRaisesMessage(AssertionError, "DoesNotExist"):
            self.run_jobs()


class Committing(HoldfastMixin, TransactionTestCase):
    available_apps = ("tests.integrations.django.shop",)

    def test_first_test_sees_no_jobs(self) -> None:
        assert self.enqueued() == []
        ship.enqueue(1)

    def test_second_test_sees_no_jobs(self) -> None:
        self.test_first_test_sees_no_jobs()


def run_cases(*cases: tuple[type[unittest.TestCase], int]) -> None:
    for case, tests in cases:
        outcome = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(outcome)
        assert (outcome.testsRun, outcome.failures, outcome.errors) == (tests, [], [])


def test_test_case_mixin_works_in_both_test_case_types(database: str) -> None:
    run_cases((InTransaction, 2), (WithTestData, 3), (Committing, 2))
    assert len(app.jobs.list()) == 2, "the jobs of TestCase were rolled back"
    assert seen, "handlers ran in this process"


def test_run_jobs_runs_the_steps_of_sync_handlers(database: str) -> None:
    run_cases((StepsInTransaction, 3), (StepsCommitted, 2))
