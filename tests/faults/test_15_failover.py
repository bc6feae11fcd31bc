"""Fault 15: the primary is lost under load and its standby takes over, or both change roles as planned.

With a synchronous standby no accepted job is lost and none runs again after its end. With an asynchronous one, what
was accepted in the last moments may be missing, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from holdfast import App, State
from holdfast.features.assembly import open_store
from holdfast.stores.requests import Finding
from tests.faults.checker import check
from tests.faults.effects import effects
from tests.faults.test_04_pg_immediate import Producer, finish
from tests.faults.workload import state_counts
from tests.support.standby import Pair
from tests.support.waiting import until
from tests.support.worker_processes import Crew

pytestmark = pytest.mark.req("HF-14", "CX-15", "SC-11")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


def more_jobs_run(folder: Path, count: int = 20) -> None:
    before = len(effects(folder))
    until(lambda: len(effects(folder)) >= before + count, "more jobs run", 60)


def standbys(url: str) -> Finding:
    """What ``holdfast doctor`` says of the standbys."""
    with closing(open_store(url)) as store:
        return next(finding for finding in store.diagnose() if finding.name == "standbys")


def fail_over(pair: Pair, folder: Path, rounds: int) -> None:
    with closing(App(pair.url)) as app, Crew(pair.url, folder, lease=5.0) as crew:
        workers = crew.start(2)
        until(lambda: app.health.get().lease_active == 2, "both workers have a lease")
        with Producer(app) as producer:
            for _ in range(rounds):
                more_jobs_run(folder)
                pair.primary.kill()
                pair.promote()
                promoted, before = time.monotonic(), len(effects(folder))
                until(lambda before=before: len(effects(folder)) > before, "a job runs", 60)  # type: ignore[misc]
                print(f"the first job ran {time.monotonic() - promoted:.2f} s after the promotion")
                pair.rebuild()
        finish(app, pair.url, producer, folder)
        assert [worker.alive for worker in workers] == [True, True], crew.said()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_synchronous_standby_takes_over_and_no_job_is_lost(pair: Pair, folder: Path) -> None:
    assert "1 connected, synchronous" in standbys(pair.url).says
    fail_over(pair, folder, rounds=2)
    pair.standby.stop()
    found = standbys(pair.url)
    assert (found.ok, found.says.partition(":")[0]) == (False, "0 connected, none of them synchronous")


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_no_job_is_lost_in_twenty_promotions(pair: Pair, folder: Path) -> None:
    fail_over(pair, folder, rounds=20)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_planned_switchover_loses_nothing_and_leaves_nothing_open(pair: Pair, folder: Path) -> None:
    """The primary refuses writes, the standby catches up, the primary stops, the standby is promoted."""
    with closing(App(pair.url)) as app, Crew(pair.url, folder, lease=5.0) as crew:
        workers = crew.start(2)
        until(lambda: app.health.get().lease_active == 2, "both workers have a lease")
        with Producer(app) as producer:
            more_jobs_run(folder)
            pair.set_read_only()
            refused = len(producer.uncertain)
            until(lambda: len(producer.uncertain) > refused, "producers are refused")
            pair.caught_up()
            pair.primary.stop()
            pair.promote()
            more_jobs_run(folder)
        assert "none is connected" in standbys(pair.url).says
        finish(app, pair.url, producer, folder)
        assert [worker.alive for worker in workers] == [True, True], crew.said()
        with psycopg.connect(pair.primary.dsn("app")) as session:
            made = {str(id) for (id,) in session.execute("select id from holdfast.job")}
        assert made == set(producer.accepted), "a refused call has made no job"


def test_asynchronous_standby_loses_only_the_last_moments(folder: Path) -> None:
    with Pair(synchronous=False) as pair, closing(App(pair.url)) as app:
        with Producer(app, pause=0.0005) as producer:
            until(lambda: len(producer.accepted) > 50, "jobs are accepted")
            assert "1 connected, asynchronous" in standbys(pair.url).says
            copied = len(producer.accepted)
            pair.caught_up()
            pair.cut()
            late = len(producer.accepted) + 50
            until(lambda: len(producer.accepted) > late, "jobs are accepted without the standby")
            pair.primary.kill()
            pair.promote()
            until(lambda: state_counts(app), "the new primary answers")
            again = len(producer.accepted) + 20
            until(lambda: len(producer.accepted) > again, "jobs are accepted again")
        with psycopg.connect(pair.primary.dsn("app")) as session:
            made = {str(id) for (id,) in session.execute("select id from holdfast.job")}
        lost = {job for job in producer.accepted if job not in made}
        assert lost, "the standby had not received them"
        assert not lost & {*producer.accepted[:copied]}, "nothing is lost that the standby had"
        with Crew(pair.url, folder) as crew:
            crew.start(1)
            until(lambda: state_counts(app).get(State.SUCCEEDED) == len(made), "all others run", 60)
        check(pair.url, made, folder=folder)
