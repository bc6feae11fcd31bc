"""Fault 35: the programs of the previous release go on after a migration, beside those of this one.

The database is made by the previous release and migrated under load. Then workers of both releases change places ten
times, while producers of both enqueue through the database and through services of both: the Python client, and the
TypeScript client of the previous release where Node is installed. No job may be lost, run twice to its end, or fail
unless its handler says so, and both services stay ready.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest

from holdfast.engine.states import State
from holdfast.features.assembly import open_store
from tests.faults.checker import check
from tests.faults.effects import FILE as EFFECTS
from tests.faults.effects import effects
from tests.faults.snapshot import Snapshot
from tests.support.direct_sql import open_by_hand
from tests.support.frozen import RELEASES, Frozen, this_release
from tests.support.ledger import check_ledger
from tests.support.postgres_databases import TemplateDatabases
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-14", "SC-1")

APP = "tests.faults.upgrade_app"
LIMIT = 120.0
AT_ONCE = 2
# No worker is killed here: only a machine that stands still for so long ends a lease.
LEASE = "30s"
FAILURES = {"flaky": 1, "doomed": 2}
"""How often the handler of a kind fails, by its own code."""

SET_UP = """
import sys
from tests.faults.upgrade_app import app
app.limits.set(kind="limited", concurrency=int(sys.argv[1]))
print(app.tokens.issue("client", roles=["admin"]).text)
"""


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    databases: TemplateDatabases = request.getfixturevalue("postgres_databases")
    with databases.empty() as url:
        yield url


@dataclass
class Service:
    """`holdfast serve`, whose readiness is checked all the time."""

    process: subprocess.Popen[bytes]
    address: str
    unready: list[str] = field(default_factory=list)
    checks: int = 0

    def __post_init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.2):
            self.checks += 1
            try:
                with urllib.request.urlopen(f"{self.address}/readyz", timeout=30) as answer:
                    answer.read()
            except urllib.error.HTTPError as error:
                self.unready.append(f"{error.code}: {error.read().decode()}")
            except OSError as error:
                self.unready.append(repr(error))


class Mix:
    """The programs of one run."""

    def __init__(self, url: str, folder: Path, old: Frozen, duration: float, pause: float) -> None:
        self.url, self.folder, self.old, self.new = url, folder, old, this_release()
        self._duration, self._pause = duration, pause
        self._stack = ExitStack()
        self.workers: list[tuple[Frozen, subprocess.Popen[bytes]]] = []
        self.released: dict[int, str] = {}
        """The release of each worker, by pid."""
        self.producers: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.services: list[Service] = []
        self._token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stack.close()
        if error is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-4_000:]}")

    def run(self) -> None:
        self.old.migrate(self.url)
        prepared = self.old.run("-c", SET_UP, str(AT_ONCE), url=self.url, HOLDFAST_TEST_FOLDER=str(self.folder))
        self._token = prepared.stdout.strip()
        before = self._serve(self.old)
        for _ in range(2):
            self._begin(self.old)
        self._produce("old-old", self.old, before)
        self._produce_in_node("node-old", before)
        until(lambda: len(effects(self.folder, "ended")) > 20, "the previous release works", LIMIT)
        self.new.migrate(self.url)
        assert "newer release" in self.old.migrate(self.url)
        after = self._serve(self.new)
        self._produce("old-new", self.old, after)
        self._produce("new-old", self.new, before)
        self._produce_in_node("node-new", after)
        for place in range(10):
            self._begin((self.new, self.old)[place % 2])
            self._end_oldest()
            threading.Event().wait(self._duration / 10)
        (self.folder / "enough").touch()
        for name, producer in self.producers:
            assert producer.wait(LIMIT) == 0, name
        until(self._all_ended, "all jobs have ended", LIMIT)
        while self.workers:
            self._end_oldest()
        for service in self.services:
            assert service.unready == [], (service.address, service.checks)
            assert service.checks > 10
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(LIMIT) == 0

    def _start(self, release: Frozen, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        extra = {"HOLDFAST_TEST_FOLDER": str(self.folder), "HOLDFAST_TEST_TOKEN": self._token}
        log = self.folder / f"{name}.log"
        return self._stack.enter_context(release.start(*arguments, url=self.url, log=log, **extra))

    def _begin(self, release: Frozen) -> None:
        """Start a worker, and wait until it runs jobs."""
        name = f"worker-{len(self.released) + 1}-{release.version}"
        options = ("--poll", "200ms", "--lease", LEASE, "--concurrency", "4", "--grace", "20s", "--log-level", "info")
        process = self._start(release, name, "-m", "holdfast", "worker", f"{APP}:app", *options)
        self.workers.append((release, process))
        self.released[process.pid] = release.version
        if self.producers:
            until(lambda: self._has_run(process.pid), f"{name} runs a job", LIMIT)

    def _end_oldest(self) -> None:
        _, process = self.workers.pop(0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0

    def _serve(self, release: Frozen) -> Service:
        name = f"service-{release.version}"
        process = self._start(release, name, *("-m", "holdfast", "serve"), *("--port", "0", "--json"))
        log = self.folder / f"{name}.log"
        pattern = re.compile(r'"address": "(http://[^"]+?)/?"')
        (address,) = until(lambda: pattern.findall(log.read_text()), "the service starts", LIMIT)
        service = self._stack.enter_context(Service(process, address))
        self.services.append(service)
        return service

    def _produce(self, name: str, release: Frozen, service: Service) -> None:
        arguments = (name, service.address, str(self._pause))
        self.producers.append((name, self._start(release, f"producer-{name}", "-m", APP, *arguments)))

    def _produce_in_node(self, name: str, service: Service) -> None:
        node = shutil.which("node")
        if node is None:
            return
        package = self.folder / "package"
        if not package.exists():
            with tarfile.open(RELEASES / f"holdfast-client-{self.old.version}.tgz") as packed:
                packed.extractall(self.folder, filter="data")
        program = str(Path(__file__).with_name("upgrade_client.mjs"))
        with (self.folder / f"producer-{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [node, program, str(package), str(self.folder), name, str(self._pause)],
                env=self.old.environment(
                    extra={"HOLDFAST_API_URL": service.address, "HOLDFAST_API_TOKEN": self._token}
                ),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.producers.append((name, process))

    def _has_run(self, pid: int) -> bool:
        file = self.folder / EFFECTS
        return file.exists() and f'"pid": {pid}}}' in file.read_text()

    def _all_ended(self) -> bool:
        """Whether every job has ended, except the latest of the schedule."""
        with closing(open_by_hand(self.url)) as by_hand:
            query = "select count(*) from job_state where finished_at is null and kind <> 'tick'"
            return by_hand.execute(query) == [(0,)]

    def noted(self, what: str) -> dict[str, set[str]]:
        """The ids that each producer noted."""
        files = self.folder.glob(f"{what}-*")
        return {file.name.removeprefix(f"{what}-"): set(file.read_text().split()) for file in files}


def verify(mix: Mix) -> None:
    """Compare the database and the effects of the handlers with what the producers noted."""
    accepted = mix.noted("accepted")
    with closing(open_by_hand(mix.url)) as by_hand:
        kinds = {str(job): str(kind) for job, kind in by_hand.execute("select id, kind from job_state")}
        planned = {
            str(job): str(flow)
            for job, flow in by_hand.execute("select id, workflow_id from job where workflow_id is not null")
        }
        due = [moment for (moment,) in by_hand.execute("select due_at from made_from order by due_at")]
    ticks = {job for job, kind in kinds.items() if kind == "tick"}
    snapshot = check(mix.url, set().union(planned, *accepted.values()), folder=mix.folder, uncertain=ticks)
    workflows = set().union(*mix.noted("workflows").values())
    assert Counter(planned.values()) == dict.fromkeys(workflows, 4)
    assert workflows

    ends = Counter((kinds[job], row.state) for job, row in snapshot.rows.items() if job not in ticks)
    assert ends.keys() == {
        *((kind, State.SUCCEEDED) for kind in ("plain", "flaky", "walk", "limited", "asks", "page", "book")),
        ("doomed", State.DEAD_LETTER),
    }
    _verify_attempts(snapshot, kinds)
    _verify_effects(mix, snapshot, kinds)

    moments = [moment / 1e6 if isinstance(moment, int) else moment.timestamp() for moment in due]
    assert {round(after - before, 3) for before, after in pairwise(moments)} == {1.0}, "a tick is missing or doubled"

    runners = {effect.job: mix.released[effect.pid] for effect in effects(mix.folder, "ended")}
    served = {name: Counter(runners[job] for job in jobs if job in runners) for name, jobs in accepted.items()}
    assert all(len(releases) == 2 for releases in served.values()), served
    print(json.dumps({"jobs": len(snapshot.rows), "ticks": len(ticks), "workflows": len(workflows), **served}))


def _verify_attempts(snapshot: Snapshot, kinds: dict[str, str]) -> None:
    """No attempt failed but those that the handlers fail, and no lease was lost."""
    events = [(kinds[job], event.type) for job, ledger in snapshot.ledgers.items() for event in ledger]
    jobs, counts = Counter(kinds[job] for job in snapshot.rows), Counter(events)
    failures = {kind: count for (kind, event), count in counts.items() if event == "fail"}
    assert failures == {kind: times * jobs[kind] for kind, times in FAILURES.items()}
    assert not [event for event in counts if event[1] == "lease_expired"]


def _verify_effects(mix: Mix, snapshot: Snapshot, kinds: dict[str, str]) -> None:
    succeeded = {job for job, row in snapshot.rows.items() if row.state is State.SUCCEEDED}
    assert Counter(effect.job for effect in effects(mix.folder, "ended")) == dict.fromkeys(succeeded, 1)
    walks = {job for job, kind in kinds.items() if kind == "walk"}
    for step in ("step first", "step second"):
        assert Counter(effect.job for effect in effects(mix.folder, step)) == dict.fromkeys(walks, 1)
    # The lines of the file are in the order in which they were written.
    running: set[str] = set()
    for effect in effects(mix.folder):
        if kinds[effect.job] == "limited":
            (running.add if effect.what == "begun" else running.discard)(effect.job)
            assert len(running) <= AT_ONCE


def mix_releases(url: str, folder: Path, old: Frozen, *, duration: float, pause: float) -> None:
    with Mix(url, folder, old, duration, pause) as mix:
        mix.run()
        verify(mix)
    with closing(open_store(url)) as store:
        assert store.schema().current
        check_ledger(store)


def test_previous_release_works_on_the_new_schema(tmp_path: Path, previous_release: Frozen) -> None:
    url, at = f"sqlite:///{tmp_path}/jobs.db", {"HOLDFAST_TEST_FOLDER": str(tmp_path)}
    previous_release.migrate(url)
    with closing(open_store(url)) as store:
        assert store.migrate().current
    enqueue = "from tests.faults.worker_app import work; [work.enqueue(number=n) for n in range(20)]"
    previous_release.run("-c", enqueue, url=url, **at)
    previous_release.run("-m", "holdfast", "worker", "tests.faults.worker_app:app", "--burst", url=url, **at)
    with closing(open_by_hand(url)) as by_hand:
        assert by_hand.execute("select state, count(*) from job_state group by 1") == [("succeeded", 20)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_releases_change_places_for_half_a_minute(empty_url: str, folder: Path, previous_release: Frozen) -> None:
    mix_releases(empty_url, folder, previous_release, duration=30, pause=1.5)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_releases_change_places_for_ten_minutes(empty_url: str, folder: Path, previous_release: Frozen) -> None:
    mix_releases(empty_url, folder, previous_release, duration=600, pause=2.0)
