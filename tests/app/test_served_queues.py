"""A worker serves every queue that its app declares, and unserved queues are reported."""

from __future__ import annotations

import logging

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.cli.options import queues_of
from holdfast.errors import InvalidSetting
from holdfast.worker.options import WorkerOptions
from tests.support.workers import work_off


@pytest.mark.req("JF-7", "HF-2", "DP-19")
def test_worker_serves_every_declared_queue_unless_restricted(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.job(queue="mail")
    def send() -> str:
        return "sent"

    @app.job()
    def plain() -> str:
        return "done"

    assert queues_of("all") == ((), None)
    mail, default = send.enqueue(), plain.enqueue()
    with caplog.at_level(logging.WARNING, logger="holdfast.worker"):
        work_off(app, queues=("default",))
    warned = [record.getMessage() for record in caplog.records if "does not serve" in record.getMessage()]
    assert len(warned) == 1
    assert "queue mail" in warned[0]
    assert (mail.get().state, default.result(timeout=5)) == (State.QUEUED, "done")

    store = session_of(app).store
    store.run(store.leases.open("elsewhere", 30.0, "*", "worker", ("send",), ("default",), 4))
    health = app.health.get()
    assert health.unserved_queues == ("mail",)
    concern = next(each for each in health.reasons if each.code == "unserved_kinds")
    assert "no running worker serves queue mail" in concern.says
    assert "--queues mail" in concern.fix
    assert "no_worker_for_queue" in [reason.code for reason in app.jobs.why(mail.id).reasons]

    caplog.clear()
    work_off(app)
    assert mail.result(timeout=5) == "sent"
    assert not [record for record in caplog.records if "does not serve" in record.getMessage()]
    again = send.enqueue()
    assert app.tick().succeeded == 1
    assert again.result(timeout=5) == "sent"


@pytest.mark.req("JF-7", "DP-22")
def test_one_name_instead_of_a_list_of_queues_is_refused(app: App) -> None:
    for run in (app.run_worker, app.tick):
        with pytest.raises(InvalidSetting) as refused:
            run(queues="mail")
        assert refused.value.message == "queues must be a list of queue names, not str"
        assert refused.value.fix == 'Write queues=["mail"].'
    with pytest.raises(InvalidSetting, match="at least one queue"):
        app.tick(queues=[])
    assert WorkerOptions(queues=["mail"]).queues == ("mail",)


@pytest.mark.req("DP-19")
def test_worker_without_slots_is_refused(app: App) -> None:
    with pytest.raises(InvalidSetting, match="concurrency of at least 1"):
        app.run_worker(concurrency=0, burst=True)
