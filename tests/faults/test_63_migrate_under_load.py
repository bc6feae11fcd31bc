"""Fault 63: a migration is killed again and again while programs of the release before and of this one are at work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.features.assembly import open_store
from holdfast.stores.migrations import Plan, Script
from tests.faults.checker import check
from tests.migration.catalogue import applied, catalogue
from tests.migration.next_release import plan_of, use
from tests.support.direct_sql import open_by_hand
from tests.support.frozen import Frozen
from tests.support.postgres_databases import TemplateDatabases
from tests.support.waiting import until
from tests.support.worker_processes import TARGET, environment

pytestmark = pytest.mark.req("HF-14", "DP-20")

ROOT = Path(__file__).parents[2]
ROWS = 60
LIMIT = 240.0
MORE = f"""
create table more (n integer not null primary key);
insert into more with recursive c (n) as (select 1 union all select n + 1 from c where n < {ROWS}) select n from c;
"""
LATER = {
    "sqlite": "create index if not exists more_later on more (n);\n",
    "postgres": "create index concurrently more_later on more (n);\n",
}
# Each batch takes one row, and a row that was taken twice would show it.
BATCH = "-- batch\nupdate more set n = n + 1000 where n = (select min(n) from more where n < 1000);\n"
PRODUCE = """
import sys, pathlib, time
from tests.faults.worker_app import work
folder = pathlib.Path(sys.argv[1])
with open(folder / sys.argv[2], "a", buffering=1) as accepted:
    while not (folder / "enough").exists():
        accepted.write(work.enqueue().id + "\\n")
        time.sleep(0.01)
"""
MIGRATE = "import sys; from tests.faults.test_63_migrate_under_load import migrate; migrate(sys.argv[1])"


def heavier(plan: Plan, kind: str) -> Plan:
    """The next release: a table, a trigger on a table in use, and work that is left for after the transaction."""
    if kind == "sqlite":
        code = plan.code.sql + "\nCREATE TRIGGER holdfast_more AFTER INSERT ON holdfast_job BEGIN SELECT 1; END;\n"
    else:
        made = """
            create or replace function more_jobs() returns trigger language plpgsql as $$ begin return null; end $$;
            create or replace trigger more_jobs after insert on job for each statement execute function more_jobs();
        """
        code = plan.code.sql.replace("-- views\n", f"{made}-- views\n")
    return replace(
        plan,
        migrations=(*plan.migrations, Script("9999_more", MORE)),
        later=(*plan.later, Script("9999_more.later", LATER[kind] + BATCH)),
        code=Script("code", code),
        release="9.0",
    )


def migrate(url: str) -> None:
    with closing(open_store(url)) as store:
        use(store, heavier(plan_of(store), "sqlite" if url.startswith("sqlite:") else "postgres"))
        store.migrate()


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    result: str = request.param
    return result


@pytest.fixture
def urls(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db", f"sqlite:///{tmp_path}/new.db"
        return
    databases: TemplateDatabases = request.getfixturevalue("postgres_databases")
    with databases.empty() as one, databases.empty() as two:
        yield one, two


class Programs:
    """The processes of one run. `old`: those of the release before."""

    def __init__(self, url: str, folder: Path, before: Frozen) -> None:
        self._url, self._folder, self._before = url, folder, before
        self._stack = ExitStack()
        self.running: list[subprocess.Popen[bytes]] = []
        self.producers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running:
            process.kill()
            process.wait()
        self._stack.close()

    def start(self, *command: str, old: bool = False) -> subprocess.Popen[bytes]:
        path = self._before.import_path if old else str(ROOT)
        log = self._stack.enter_context((self._folder / f"{len(self.running)}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment(self._url, self._folder, {"PYTHONPATH": path}),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self.running.append(process)
        return process

    def work(self, *, old: bool) -> subprocess.Popen[bytes]:
        options = ("--poll", "100ms", "--concurrency", "4", "--lease", "30s")
        return self.start("-m", "holdfast", "worker", TARGET, *options, old=old)

    def produce(self, name: str, *, old: bool) -> None:
        self.producers.append(self.start("-c", PRODUCE, str(self._folder), name, old=old))

    def accepted(self) -> set[str]:
        files = (self._folder / name for name in ("of-old", "of-new"))
        return {line for file in files if file.exists() for line in file.read_text().split()}


def rows_done(url: str) -> int:
    with suppress(StoreUnavailable), closing(open_by_hand(url)) as by_hand:
        if "9999_more" in applied(url):
            return int(str(by_hand.execute("select count(*) from more where n > 1000")[0][0]))
    return 0


def test_killed_migration_of_a_file_is_repeated(tmp_path: Path, choice: Random, previous_release: Frozen) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    previous_release.migrate(url)
    before = applied(url)
    with Programs(url, tmp_path, previous_release) as programs:
        migrating = programs.start("-c", MIGRATE, url)
        with suppress(subprocess.TimeoutExpired):
            migrating.wait(choice.uniform(0.4, 0.8))
        migrating.kill()
        migrating.wait()
    assert applied(url) == before or "9999_more" in applied(url)
    migrate(url)
    assert rows_done(url) == ROWS


@pytest.mark.slow
def test_killed_migrations_lose_nothing(
    urls: tuple[str, str], tmp_path: Path, choice: Random, previous_release: Frozen
) -> None:
    url, new_url = urls
    previous_release.migrate(url)
    before = applied(url)
    with Programs(url, tmp_path, previous_release) as programs:
        programs.produce("of-old", old=True)
        workers = [programs.work(old=True)]
        until(lambda: len(programs.accepted()) > 20, "the release before is at work", LIMIT)
        # Somewhere in the transaction, or before or after it.
        for _ in range(4):
            migrating = programs.start("-c", MIGRATE, url)
            with suppress(subprocess.TimeoutExpired):
                migrating.wait(choice.uniform(0.5, 2.0))
            migrating.kill()
            migrating.wait()
            assert applied(url) == before or "9999_more" in applied(url)
        # In the middle of the work after the transaction, if it was not done by then.
        migrating = programs.start("-c", MIGRATE, url)
        until(lambda: migrating.poll() is not None or rows_done(url) > 0, "the first batches are done", LIMIT)
        migrating.kill()
        migrating.wait()
        workers.append(programs.work(old=False))
        programs.produce("of-new", old=False)
        last = programs.start("-c", MIGRATE, url)
        assert last.wait(LIMIT) == 0
        reached = len(programs.accepted())
        until(lambda: len(programs.accepted()) > reached + 40, "both releases are at work", LIMIT)
        (tmp_path / "enough").touch()
        assert [producer.wait(LIMIT) for producer in programs.producers] == [0, 0]
        until(lambda: _unfinished(url) == 0, "all jobs have ended", LIMIT)
        assert [worker.poll() for worker in workers] == [None, None]
    check(url, programs.accepted(), folder=tmp_path)
    with closing(open_by_hand(url)) as by_hand:
        assert sorted(by_hand.execute("select n from more")) == [(n + 1000,) for n in range(1, ROWS + 1)]
    migrate(new_url)
    ours, fresh = catalogue(url), catalogue(new_url)
    for found in (ours, fresh):  # partitions are named after the time of their creation
        for name in list(found):
            found[name] = [line for line in found[name] if "event_2" not in line]
    assert ours == fresh
    assert applied(url) == applied(new_url)


def _unfinished(url: str) -> int:
    with closing(open_by_hand(url)) as by_hand:
        return int(str(by_hand.execute("select count(*) from job_state where finished_at is null")[0][0]))
