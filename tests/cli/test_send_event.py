"""`holdfast send-event`: data, recipients, and idempotency keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import config
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.cli.durable_jobs import begun
from tests.cli.processes import run
from tests.support.stores import put_one, state_of

pytestmark = pytest.mark.req("HF-6")

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"


def waiting(store: Store, invoice: Any = 7, **options: Any) -> str:
    return begun(store.url, ("event", ("payment.settled", {"invoice": invoice}, "1h")), **options)


@pytest.mark.slow
def test_send_event_reports_whether_it_is_new_and_how_many_jobs_resume(holdfast: Holdfast, store: Store) -> None:
    jobs = [waiting(store), waiting(store)]
    other = holdfast("send-event", "payment.settled", "invoice=8")
    assert (other.exit_code, other.stderr) == (0, "New: no job waited for it.\n")
    result = holdfast("send-event", "payment.settled", '{"invoice": 7}', "--key", "k")
    assert (result.exit_code, result.stderr) == (0, "New: 2 jobs resume.\n")
    (event_id,) = result.stdout.splitlines()
    assert {state_of(store, job_id) for job_id in jobs} == {State.QUEUED}
    again = holdfast("send-event", "payment.settled", '{"invoice": 7}', "--key", "k", "--json")
    assert document(again) == {"id": event_id, "created": False, "woke": 0}
    assert "Already sent with this key" in again.stderr
    (step,) = store.run(store.steps.list(jobs[0], "default"))
    assert (step.value["id"], step.value["sent_by"]) == (event_id, config.operating_user())


def test_event_for_one_job_resumes_only_that_job(holdfast: Holdfast, store: Store) -> None:
    mine, other = waiting(store), waiting(store)
    output = holdfast("send-event", "payment.settled", "invoice=7", "--job", mine, "--json")
    assert document(output)["woke"] == 1
    assert (state_of(store, mine), state_of(store, other)) == (State.QUEUED, State.RETRY_WAITING)
    for job_id in (UNKNOWN, put_one(store, tenant="acme")):
        result = holdfast("send-event", "payment.settled", "--job", job_id, "--json")
        assert (result.exit_code, error_of(result)["code"]) == (3, "not_found")


@pytest.mark.req("JF-1")
def test_event_resumes_only_jobs_of_its_tenant(holdfast: Holdfast, store: Store) -> None:
    theirs = waiting(store, tenant="acme")
    assert document(holdfast("send-event", "payment.settled", "invoice=7", "--json"))["woke"] == 0
    assert state_of(store, theirs) is State.RETRY_WAITING
    result = holdfast("send-event", "payment.settled", "invoice=7", "--tenant", "acme", "--json")
    assert document(result)["woke"] == 1


@pytest.mark.parametrize(
    ("given", "invoice"),
    [
        (("invoice=7",), 7),
        (('invoice="7"',), "7"),
        (("invoice=INV-7",), "INV-7"),
        (("invoice=a=b",), "a=b"),
        (("invoice=",), ""),
        (("invoice=true",), True),
        (("invoice=null", "other=1"), None),
        (("@FILE",), 7),
        (("@FILE", "invoice=8"), 8),
        (("-",), 7),
    ],
)
def test_event_data_is_read_from_fields_files_and_stdin(
    holdfast: Holdfast, sqlite_store: Store, tmp_path: Path, given: tuple[str, ...], invoice: object
) -> None:
    path = tmp_path / "event.json"
    path.write_text('{"invoice": 7}')
    job_id = waiting(sqlite_store, invoice)
    arguments = [argument.replace("FILE", str(path)) for argument in given]
    result = holdfast("send-event", "payment.settled", *arguments, "--url", sqlite_store.url, input='{"invoice": 7}')
    assert (result.exit_code, result.stderr) == (0, "New: 1 job resumes.\n")
    assert state_of(sqlite_store, job_id) is State.QUEUED


@pytest.mark.req("DP-22")
@pytest.mark.parametrize(
    ("given", "code"),
    [
        (("x", "nonsense"), "payload_not_json"),
        (("x", "{"), "payload_not_json"),
        (("x", "7"), "invalid_event"),
        (("x", "[1]"), "invalid_event"),
        (("x", "a=1", "a=2"), "conflicting_options"),
        (("x", "a=1", "{}"), "usage"),
        (("x", "[1]", "a=1"), "conflicting_options"),
        (("x", "@/no/such/file"), "unreadable_file"),
        (("x" * 101,), "invalid_name"),
        (("*",), "invalid_name"),
        (("x", "--job", "nonsense"), "invalid_id"),
        (("x", "--key", " "), "invalid_name"),
        ((), "usage"),
    ],
)
def test_invalid_event_is_rejected(holdfast: Holdfast, store: Store, given: tuple[str, ...], code: str) -> None:
    result = holdfast("send-event", *given, "--json")
    assert (result.exit_code, error_of(result)["code"]) == (2, code)


@pytest.mark.slow
@pytest.mark.req("DP-22")
def test_event_data_is_read_from_a_pipe(store: Store) -> None:
    job_id = waiting(store, "a\x1b[2J☃")
    done = run("send-event", "payment.settled", "-", url=store.url, input='{"invoice": "a\\u001b[2J☃"}'.encode())
    assert (done.returncode, done.stderr) == (0, "New: 1 job resumes.\n")
    assert len(done.stdout.splitlines()) == 1
    assert state_of(store, job_id) is State.QUEUED
