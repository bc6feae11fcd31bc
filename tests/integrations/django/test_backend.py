"""``HoldfastBackend``: Django tasks and native jobs on Django's connection, run by workers."""

from __future__ import annotations

import copy
import json
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections, transaction
from django.test import RequestFactory
from django.utils import timezone
from psycopg.pq import TransactionStatus

from holdfast.app.internals import scheduler_of, session_of
from holdfast.errors import HoldfastError, InvalidArguments, InvalidSetting, SchemaMismatch
from holdfast.integrations.django import results
from holdfast.integrations.django.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.integrations.django.shop.models import Order
from tests.integrations.django.shop.tasks import app, audit, count, fail, pack, restock, seen, ship
from tests.support.django_setup import make_default
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-8")


class SignalRecorder(list[Any]):
    """The signals Django sent, in order."""

    def __enter__(self) -> SignalRecorder:
        self._signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
        self._receivers = []
        for name, signal in self._signals.items():

            def record(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
                self.append((name, task_result.id, str(task_result.status)))

            signal.connect(record)
            self._receivers.append((signal, record))
        return self

    def __exit__(self, *_: object) -> None:
        for signal, record in self._receivers:
            signal.disconnect(record)


def load() -> None:
    from holdfast.integrations.django.worker import load

    load()


def test_task_is_part_of_the_transaction(database: str) -> None:
    with transaction.atomic():
        lost = ship.enqueue(1)
        assert ship.get_result(lost.id) == lost, "the transaction sees its own jobs"
        assert [job.id for job in app.jobs.list()] == [lost.id]
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        ship.get_result(lost.id)
    with transaction.atomic():
        order = Order.objects.create(email="a@b.c")
        kept = ship.enqueue(order.pk, carrier="bike")
        packed = pack.enqueue(order.pk)
    assert {job.id for job in app.jobs.list()} == {kept.id, packed.id}
    assert ship.get_result(kept.id) == kept
    assert (kept.status, kept.args, kept.kwargs) == (TaskResultStatus.READY, [order.pk], {"carrier": "bike"})


def test_worker_runs_tasks_and_native_jobs(database: str) -> None:
    order = Order.objects.create(email="a@b.c")
    with SignalRecorder() as signals:
        shipped = ship.enqueue(order.pk)
        later = ship.using(run_after=timezone.now() + timedelta(days=1)).enqueue(order.pk)
        counted = count.enqueue()
        packed, audited = pack.enqueue(order.pk), audit.enqueue()
        load()
        assert app.tick(20, queues=("default", "slow")).succeeded == 5, (
            "including the task that the native job enqueued"
        )
    shipped.refresh()
    assert (shipped.status, shipped.return_value) == (TaskResultStatus.SUCCESSFUL, ["a@b.c", "post"])
    assert shipped.enqueued_at <= shipped.started_at <= shipped.finished_at
    assert (shipped.attempts, shipped.errors) == (1, [])
    later.refresh()
    assert later.status == TaskResultStatus.READY
    assert later == ship.get_result(later.id)
    counted.refresh()
    assert counted.return_value == 1
    assert (counted.task.queue_name, counted.task.priority) == ("slow", -5)
    assert (packed.result(), audited.result()) == ("a@b.c", 1)
    assert [signal for signal in signals if signal[1] == shipped.id] == [
        ("enqueued", shipped.id, "READY"),
        ("started", shipped.id, "RUNNING"),
        ("finished", shipped.id, "SUCCESSFUL"),
    ]
    assert [used.connection for used in seen] == [None] * 3, "connections of handlers are closed after the attempt"


def test_failure_is_retried_and_then_final(file: str) -> None:
    with SignalRecorder() as signals:
        result = fail.enqueue()
        load()
        assert app.tick(1).retried == 1
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.READY, 1, 1)
        app.run_worker(burst=True, poll=0.01)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert [error.exception_class for error in result.errors] == [LookupError] * 2
    assert result.errors[-1].traceback.endswith("LookupError: no such order\n")
    assert seen == [1, 2]
    assert [signal[0] for signal in signals] == ["enqueued", "started", "started", "finished"]
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


async def test_async_forms_enqueue_and_read(database: str) -> None:
    result = await count.aenqueue()
    assert await count.aget_result(result.id) == result
    native = await pack.aenqueue(1)
    assert (await native.aget()).kind == "shop.pack"
    await session_of(app).store.leave_loop()


def test_key_identifies_one_job(file: str) -> None:
    first = ship.using(key="order-1", tags=("a",)).enqueue(1)
    again = ship.using(key="order-1", tags=("a",)).enqueue(1)
    assert again.id == first.id
    assert ship.get_result(first.id).task == first.task
    assert len(app.jobs.list()) == 1


def test_model_instances_and_invalid_options_are_refused(file: str) -> None:
    order = Order.objects.create(email="a@b.c")
    calls: list[Any] = [
        lambda: ship.enqueue(order),
        lambda: ship.enqueue(1, carrier={"by": [order]}),
        lambda: ship.enqueue(Order.objects.all()),
        lambda: pack.enqueue(order),
    ]
    for call in calls:
        with pytest.raises(InvalidArguments, match=r"shop\.Order") as refused:
            call()
        assert refused.value.code == "model_instance"
    with pytest.raises(TypeError, match="Unsupported type"):
        ship.enqueue(timezone.now())
    with pytest.raises(InvalidTask, match="priority"):
        ship.using(priority=101)
    with pytest.raises(InvalidTask, match="timeout"):
        task_backends["default"].task_class(func=load, timeout="soon")
    native = pack.enqueue(1)
    for unknown in ("123", "01a1e8de-6817-7002-8018-be86ac821882", native.id):
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(unknown)


def test_first_guesses(file: str) -> None:
    calls: list[Any] = [ship.enqueue, lambda: ship.enqueue(1, 2), lambda: ship.enqueue(1, carier="post")]
    for call in calls:
        with pytest.raises(InvalidArguments, match=r"shop\.tasks\.ship: "):
            call()
    assert len(app.jobs.list()) == 0
    with pytest.raises(InvalidSetting, match="For queue use queue_name"):
        ship.using(queue="mail")
    for name in ("delay", "countdown", "eta", "run_at"):
        with pytest.raises(InvalidSetting, match=f"For {name} use run_after"):
            ship.using(**{name: 5})
    with pytest.raises(AttributeError, match=r"Use task\.enqueue"):
        ship.delay(1)
    with pytest.raises(AttributeError, match=r"Use task\.using\(run_after=…"):
        ship.apply_async(1)
    assert copy.copy(ship) == ship


def test_argument_types_are_checked_as_those_of_native_jobs(file: str) -> None:
    calls: list[Any] = [
        lambda: ship.enqueue("seven"),
        lambda: ship.enqueue(None),
        lambda: ship.enqueue(1, carrier=["bike"]),
        lambda: pack.enqueue("seven"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidArguments, match=r"(order_id|carrier): Input should be a valid"):
            call()
    assert len(app.jobs.list()) == 0
    assert ship.enqueue("7").args == ["7"], "the arguments of a task are not converted"


def test_schedules_take_tasks(file: str) -> None:
    declared = scheduler_of(app)._declared
    app.schedule("@daily", kind=ship.using(queue_name="post"), name="over", payload={"order_id": 1})
    assert app.schedule("@daily", name="decorated", payload={"order_id": 2})(ship) is ship

    try:
        drafts = [declared[name] for name in ("over", "decorated")]
        assert [draft.kind for draft in drafts] == [ship.module_path] * 2
        assert [json.loads(draft.payload)["kwargs"] for draft in drafts] == [{"order_id": 1}, {"order_id": 2}]
        assert drafts[0].options["queue"] == "post"
        with pytest.raises(InvalidArguments, match="missing a required argument"):
            app.schedule("@daily", kind=ship, name="wrong")
    finally:
        del declared["over"], declared["decorated"]


def test_schedule_of_a_task_fires(file: str) -> None:
    """Below ``@task``, too: a worker declares the schedules of its tasks when it starts."""
    load()
    assert restock.module_path in {draft.kind for draft in scheduler_of(app)._declared.values()}
    assert app.tick(5).succeeded == 0
    [schedule] = [schedule for schedule in app.schedules.list() if schedule.kind == restock.module_path]
    app.schedules.run(schedule.name)
    assert app.tick(5).succeeded == 1
    assert seen == ["restocked A1"]


def test_no_module_is_imported_by_a_name_from_the_database(file: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("class Oops(Exception): ...\nraise SystemExit('imported')")
    native = app.enqueue("planted.task", {"args": [], "kwargs": {}})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(TaskResultDoesNotExist, match=r"planted\.task is not a task of this process"):
            task_backends["default"].get_result(native.id)
        error = results._error(SimpleNamespace(error_code="planted.Oops", traceback=""))  # type: ignore[arg-type]
        with pytest.raises(ImportError, match=r"planted\.Oops"):
            _ = error.exception_class
    assert "planted" not in sys.modules


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_missing_tables_error_names_the_migrate_command(store: str, request: pytest.FixtureRequest) -> None:
    make_default(request.getfixturevalue("new_sqlite_url" if store == "sqlite" else "empty_postgres_url"))
    try:
        with pytest.raises(SchemaMismatch) as missing:
            ship.enqueue(1)
        assert isinstance(missing.value, HoldfastError)
        assert "manage.py migrate" in str(missing.value)
    finally:
        connections.close_all()


@pytest.mark.req("JF-22")
def test_sync_calls_use_the_connection_of_django(postgres_url: str) -> None:
    make_default(postgres_url)
    try:
        native = pack.enqueue(1)
        assert [job.id for job in app.jobs.list()] == [native.id]
        app.jobs.cancel(native.id)
        assert native.get().state == "cancelled"
        assert app.health.get().verdict
        with psycopg.connect(postgres_url, autocommit=True) as other:
            named = "select count(*) from pg_stat_activity where datname = current_database() and application_name = %s"
            # The server process of a closed connection needs a moment to end.
            until(lambda: other.execute(named, ("holdfast",)).fetchone() == (0,), "no connection besides Django's", 10)
        assert connections["default"].connection.info.transaction_status == TransactionStatus.IDLE
    finally:
        connections.close_all()
        app.session.store.close()


@pytest.mark.parametrize("path", ["/order/", "/order/atomic/"])
@pytest.mark.parametrize("health_checks", [True, False])
def test_connection_closed_by_the_server_is_replaced(postgres_url: str, path: str, health_checks: bool) -> None:
    make_default(postgres_url, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=health_checks)
    request = RequestFactory().get(path)
    handler = WSGIHandler()

    def get() -> int:
        """Answer a request as a web server does, with the signals to which Django's connections listen."""
        answer = handler(request.environ.copy(), lambda *_: None)
        answer.close()
        return int(answer.status_code)

    try:
        assert get() == 200
        backend = connections["default"].connection.info.backend_pid
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (backend,))
        # As with Django's own queries: checked before use, or found out by the first query that fails.
        assert [get(), get()] == ([200, 200] if health_checks else [500, 200])
        assert connections["default"].connection.info.backend_pid != backend, "the connection is kept again"
    finally:
        connections.close_all()
        app.session.store.close()
