"""The benchmark groups at their smallest size: they run and check their results; the figures mean nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import (
    fairness,
    latency,
    limits,
    mixes,
    pages,
    producers,
    report,
    retention,
    sealing,
    variants,
    waiting,
    writes,
)
from bench.__main__ import GROUPS, Measured
from bench.bars import (
    GOALS,
    of_fairness,
    of_figures,
    of_limits,
    of_pages,
    of_retention,
    of_sealing,
    of_waiting,
    of_writes,
)
from bench.facts import pinned
from bench.figures import Figure, Rounds, Run
from bench.peers.backends import Backends, PostgresPlace
from bench.peers.bench import Bench
from bench.peers.catalog import BY_NAME, OURS, Subject
from bench.peers.environments import HERE
from bench.peers.process import DriverFailed
from bench.peers.run import Results
from bench.peers.workloads import QUICK, WORKLOADS, w9
from tests.support.postgres_server import GivenServer, PostgresServer

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.req("HF-6"), pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def backends(tmp_path: Path, postgres_server: PostgresServer | GivenServer) -> Iterator[Backends]:
    if isinstance(postgres_server, GivenServer):
        pytest.skip("its processes cannot be measured")
    found = Backends(tmp_path, postgres_server)
    yield found
    found.close()


@pytest.fixture(params=OURS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return BY_NAME[request.param]


def test_steps_are_executed_and_recorded_once(backends: Backends, subject: Subject) -> None:
    figures = w9(Bench(backends, subject), replace(QUICK, scripts=3))
    assert figures["steps_s"] > 0


def test_missing_step_records_fail_the_benchmark(backends: Backends) -> None:
    forgetful = replace(BY_NAME["holdfast-sqlite"], steps="select 29")
    with pytest.raises(DriverFailed, match="29 steps are on record instead of 30"):
        w9(Bench(backends, forgetful), replace(QUICK, scripts=3))


@pytest.mark.req("CX-8")
def test_step_is_one_row_one_commit_and_no_job_update(backends: Backends, subject: Subject) -> None:
    found = writes.measure(Bench(backends, subject), concurrency=1, jobs=2)
    assert (found.store, found.rows) == (subject.place, 1.0)
    assert 0.5 < found.commits < 1.5  # on SQLite the heartbeats of both runs count too
    assert found.job_updates in (0.0, None)
    assert all(bar.held is not False for bar in of_writes([found]) if "commits" not in bar.what)


@pytest.mark.req("CX-8")
def test_steps_of_concurrent_jobs_share_commits(backends: Backends, subject: Subject) -> None:
    found = writes.measure(Bench(backends, subject), concurrency=20, jobs=20)
    assert found.rows == 1.0
    assert found.commits < 0.5


def test_throughput_with_waiting_jobs(backends: Backends, subject: Subject) -> None:
    sizes = waiting.Sizes(each=2, drain=20, rounds=1, claims=2, rest=0.1)
    rows = waiting.measure(backends, subject, sizes)
    assert [row.unit for row in rows] == ["jobs/s", "µs a job", "ms", "MiB", "MiB"]
    assert all(row.without > 0 for row in rows if row.unit != "µs a job")  # the kernel counts in hundredths of a second
    assert len(of_waiting(rows)) == len(rows)


@pytest.mark.req("SC-16")
def test_throughput_with_limits(backends: Backends) -> None:
    """On SQLite, because each limit needs a database."""
    rows = limits.measure(backends, BY_NAME["holdfast-sqlite"], limits.Sizes(drain=200, rounds=1, keys=20, claims=1))
    assert len(rows) == len(limits.LIMITS)
    assert len(of_limits(rows)) == 4
    assert all(row.ratio > 0 for row in rows)


@pytest.mark.req("JF-12")
def test_throughput_shared_between_tenants(backends: Backends) -> None:
    sizes = fairness.Sizes(large=500, drain=200, rounds=1, many=5, small=3)
    rows = fairness.measure(backends, BY_NAME["holdfast-sqlite"], sizes)
    assert [bar.at_least for bar in of_fairness(rows)] == [True, True, True, False]
    assert all(row.ratio > 0 for row in rows)


@pytest.mark.req("CX-18", "DP-16")
def test_throughput_during_the_retention_sweep(backends: Backends) -> None:
    sizes = retention.Sizes(old=400, drain=400, rounds=1, flat_out=100)
    rows = retention.measure(backends, BY_NAME["holdfast-sqlite"], sizes)
    assert [row.unit for row in rows] == ["jobs/s"] * 3
    assert len(of_retention(rows)) == 2


@pytest.mark.req("HF-4")
def test_throughput_while_the_ledger_is_sealed(backends: Backends) -> None:
    row, used = sealing.measure(backends, BY_NAME["holdfast-sqlite"], sealing.Sizes(drain=300, rounds=1))
    assert (row.without > 0, row.beside > 0, used.beside > 0, len(of_sealing([row, used]))) == (True, True, True, 1)


@pytest.mark.req("JF-16")
def test_page_latency_with_many_jobs(backends: Backends) -> None:
    found = pages.run(backends, pages.Sizes(jobs=2_000, idle=1, loaded=2))
    assert {"/", "/jobs", "/jobs?q=tag:vip"} <= {each.path for each in found}
    assert all(each.idle_p99 > 0 and each.loaded_p99 > 0 for each in found)
    assert [bar.limit for bar in of_pages(found)] == [200.0, 10.0]


def results() -> Results:
    found = Results()
    for name, rate in (("holdfast-pg", 9_000.0), ("dbos", 300.0)):
        found.outcome(name, "W9").rounds.append({"steps_s": rate, "worker_us": 1.0, "server_us": 2.0, "rss_mib": 3.0})
    found.skipped["absurd"] = "it cannot be installed"
    return found


def test_report_shows_measurements_and_skipped_subjects() -> None:
    shown = report.text([BY_NAME[name] for name in ("holdfast-pg", "dbos", "absurd")], results()).splitlines()
    assert shown[0].split() == ["W9", "steps/s", "W9", "×", "W9", "CPU", "w+s"]
    assert shown[2].split()[-3:] == ["300", "0.03", "1+2"]
    assert shown[3].endswith("skipped: it cannot be installed")


def test_bars_of_measured_groups() -> None:
    (bar,) = Measured(results=results()).bars()
    assert (bar.value, bar.held) == (30.0, True)


@pytest.mark.parametrize(("ours", "held"), [(1_500.0, True), (900.0, False), (None, None)])
def test_goal_is_held_missed_or_not_measured(ours: float | None, held: bool | None) -> None:
    name = "PostgreSQL, enqueue, 32 clients, over PgQueuer"
    figure = Figure("producers", "PostgreSQL", "enqueue, 32 clients", "1/s", ours or 0.0, "PgQueuer", 1_000.0)
    found = of_figures("producers", [] if ours is None else [figure])
    (bar,) = [each for each in found if each.what.endswith(name)]
    assert bar.held is held


def test_failed_subject_has_no_figure() -> None:
    rounds = Rounds()

    def fail() -> float:
        raise DriverFailed("29 jobs ran twice")

    rounds.take("ours 1", lambda: {"jobs_s": 10.0})
    rounds.take("ours 1", fail)
    rounds.take("ours 10", lambda: {"jobs_s": 20.0})
    assert (rounds["ours 1 jobs_s"], rounds["ours 10 jobs_s"]) == (None, 20.0)


@pytest.mark.parametrize(("value", "code"), [(0.2, 0), (9.0, 1)])
def test_exit_code_says_whether_every_bar_held(
    value: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Figure("idle", "PostgreSQL", "1 idle, transactions each", "1/s", value)]
    document = tmp_path / "run.json"
    document.write_text(json.dumps(report.document({}, {}, [], None, [], {"idle": rows})))
    monkeypatch.setattr("sys.argv", ["bench", "--read", str(document)])
    assert command.main() == code


def test_goals_belong_to_groups() -> None:
    figures = {name for name, group in GROUPS.items() if group.row is Figure}
    assert {name for name in GOALS if name not in WORKLOADS} == figures


def test_tables_of_the_performance_page_are_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "performance.md").read_text())
    found = Measured(results=results())
    report.update(page, [BY_NAME["holdfast-pg"], BY_NAME["dbos"]], found.results, found.figures)
    assert "| W9: steps/s | PostgreSQL | 9,000 steps/s | DBOS 300 | 30.00 | ≥ 2 | held |" in page.read_text()
    assert page.read_text().count("<!-- /goals -->") == 1


@pytest.mark.parametrize("name", ["one in ten fails once", "threads", "one step", "tags and keys"])
def test_drain_of_a_variant(backends: Backends, name: str) -> None:
    found = variants.drain(Bench(backends, BY_NAME["holdfast-sqlite"]), 100, **variants.VARIANTS[name])
    assert found["jobs_s"] > 0
    assert found["disk_bytes"] > 100


def test_pick_up_by_gap(backends: Backends) -> None:
    rounds = Rounds()
    rounds.take("ours", lambda: latency.pick_ups(Bench(backends, BY_NAME["holdfast-pg"]), 10))
    assert {f"ours leg {leg}" for leg in ("commit", "wake", "exchange + start")} <= rounds.values.keys()


def test_producers_count_what_they_have_added(backends: Backends) -> None:
    with Bench(backends, BY_NAME["holdfast-pg"]).place() as place:
        assert isinstance(place, PostgresPlace)
        found = producers.measure(place, producers.PRODUCERS["enqueue"], 2, 1)
    assert found["enqueues_s"] > 0
    assert found["wal_bytes"] > 100


def test_schedules_that_are_due_together_all_run(backends: Backends) -> None:
    found = list(mixes.due_schedules(Run(backends, "sqlite", quick=True)))
    assert found[0].ours > 0


def test_report_document_round_trips() -> None:
    measured = Measured(results=results())
    measured.rows = {
        "writes": [writes.Writes("SQLite", 1, 1.0, 1.0, None, None)],
        "waiting": [waiting.Beside("SQLite", "claim of 200", "ms", 2.0, 2.1, 1.05)],
        "idle": [Figure("idle", "PostgreSQL", "1 idle, client CPU", "of a core", 0.01)],
    }
    subjects = [BY_NAME["holdfast-pg"], BY_NAME["dbos"]]
    document = report.document({}, {}, subjects, measured.results, measured.bars(), measured.rows)
    again = Measured()
    again.read(json.loads(json.dumps(document)))
    assert again.rows == measured.rows
    assert again.bars() == measured.bars()


@pytest.mark.req("ARCH")
@pytest.mark.parametrize("name", BY_NAME)
def test_every_subject_has_a_driver_and_a_pinned_version(name: str) -> None:
    found = BY_NAME[name]
    driver = HERE / found.folder / ("driver.mjs" if found.runtime == "node" else "driver.py")
    assert pinned(found) != "?"
    if found.runtime != "node":
        compile(driver.read_text(), str(driver), "exec")
    assert driver.is_file()
    assert any(workload.applies(found) for workload in WORKLOADS.values())
