"""Writes of one process that arrive together share a commit on SQLite; each caller gets its own result or error."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.job import Enqueued, JobSpec
from holdfast.errors import Refused, StoreUnavailable
from holdfast.features.sqlite import SqliteStore
from holdfast.stores.flow import Flow, Statement, Steps
from holdfast.stores.sqlite import store as store_module
from holdfast.stores.sqlite.shared_commits import Write
from tests.support.concurrency import in_a_fork
from tests.support.stores import enqueue, put_one, spec
from tests.support.waiting import until

pytestmark = pytest.mark.req("SC-1", "SC-19")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(f"sqlite:///{path}")) as opened:
        opened.migrate()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE mine (a INTEGER)")
        yield opened


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of writes in each shared transaction."""
    sizes: list[int] = []
    run = store_module.run_in_savepoints

    def counted(connection: sqlite3.Connection, writes: Any) -> list[tuple[Write, Any]]:
        sizes.append(len(writes))
        return run(connection, writes)

    monkeypatch.setattr(store_module, "run_in_savepoints", counted)
    return sizes


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def waiting(store: SqliteStore) -> int:
    return len(store._shared._waiting)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def while_locked(store: SqliteStore, path: Path, *calls: Callable[[], Any]) -> list[Future[Any]]:
    """Make calls while another process writes: the first leads and waits for the lock, the others wait for it."""
    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        with locked(path):
            futures = []
            for number, call in enumerate(calls):
                futures.append(pool.submit(call))
                until(lambda: store._shared._led and waiting(store) == number, "the call waits")  # noqa: B023
        return futures


def enqueuing(store: SqliteStore, *specs: JobSpec, tenant: str = "default") -> Callable[[], list[Enqueued]]:
    return lambda: enqueue(store, *specs, tenant=tenant)


def fails(error: BaseException) -> Flow[None]:
    def steps() -> Steps[None]:
        yield Statement("INSERT INTO mine VALUES (1)")
        raise error

    return Flow(steps, short=True)


def test_waiting_threads_share_one_commit(store: SqliteStore, path: Path, groups: list[int]) -> None:
    calls = [enqueuing(store, spec(payload=number)) for number in range(12)]
    results = [future.result()[0] for future in while_locked(store, path, *calls)]
    assert groups == [11]
    assert all(result.created for result in results)
    assert rows(path, "SELECT state, count(*) FROM holdfast_job_state GROUP BY state") == [("queued", 12)]
    assert rows(path, "SELECT type, count(*), count(DISTINCT job_id) FROM holdfast_event GROUP BY type") == [
        ("enqueue", 12, 12)
    ]


def test_a_lone_write_does_not_wait_for_company(store: SqliteStore, groups: list[int]) -> None:
    for _ in range(3):
        put_one(store)
    assert groups == []


def test_large_batches_have_their_own_commit(store: SqliteStore, path: Path, groups: list[int]) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool, locked(path):
        pool.submit(enqueuing(store, spec()))
        until(lambda: store._shared._led, "one waits for the lock")
        pool.submit(enqueuing(store, *(spec() for _ in range(101))))
        assert waiting(store) == 0
    assert groups == []
    assert rows(path, "SELECT count(*) FROM holdfast_job_state") == [(102,)]


def test_a_refused_job_does_not_fail_the_others(store: SqliteStore, path: Path, groups: list[int]) -> None:
    put_one(store, id="0190b2a0-0000-7000-8000-000000000001")
    taken = spec(id="0190b2a0-0000-7000-8000-000000000001")
    key = spec(key="once")
    refused = Refused("no", code="paused", fix="")
    futures = while_locked(
        store,
        path,
        enqueuing(store, spec()),
        enqueuing(store, spec()),
        enqueuing(store, taken),
        enqueuing(store, key),
        enqueuing(store, spec(key="once")),
        lambda: store.run(fails(refused)),
        lambda: store.run(fails(ValueError("broken"))),
        enqueuing(store, spec(), spec()),
    )
    errors = [future.exception() for future in futures]
    assert [type(error).__name__ for error in errors if error is not None] == ["Conflict", "Refused", "ValueError"]
    assert errors[5] is refused
    (duplicate,) = futures[4].result()
    assert (duplicate.created, duplicate.id) == (False, key.id)
    assert [len(futures[number].result()) for number in (0, 1, 3, 7)] == [1, 1, 1, 2]
    assert rows(path, "SELECT count(*), (SELECT count(*) FROM holdfast_event) FROM holdfast_job_state") == [(6, 6)]
    assert rows(path, "SELECT * FROM mine") == []  # what the failed ones did is undone
    assert rows(path, "SELECT now FROM holdfast_clock") == [(None,)]
    assert groups == [7]


def test_a_write_that_ends_the_transaction_fails_alone(store: SqliteStore, path: Path, groups: list[int]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER ends BEFORE INSERT ON holdfast_job WHEN NEW.kind = 'ends'"
            " BEGIN SELECT RAISE(ROLLBACK, 'all is undone'); END"
        )
    futures = while_locked(
        store, path, *(enqueuing(store, spec(kind)) for kind in ("good", "good", "ends", "good", "good"))
    )
    assert [future.exception() is None for future in futures] == [True, True, False, True, True]
    assert groups == [4]
    assert rows(path, "SELECT count(*), (SELECT count(*) FROM holdfast_event) FROM holdfast_job_state") == [(4, 4)]


def test_all_callers_hear_of_a_lock_that_is_not_released(store: SqliteStore, path: Path) -> None:
    store._connections.busy_seconds = 0.2  # of new connections; none is open yet
    store._connections.close()
    with ThreadPoolExecutor(max_workers=5) as pool, locked(path):
        futures = [pool.submit(enqueuing(store, spec())) for _ in range(5)]
        assert all(isinstance(future.exception(timeout=30), StoreUnavailable) for future in futures)
    put_one(store)
    assert rows(path, "SELECT count(*) FROM holdfast_job") == [(1,)]


def test_flows_run_in_the_context_of_their_callers(store: SqliteStore, path: Path, groups: list[int]) -> None:
    caller: ContextVar[int] = ContextVar("caller")

    def steps() -> Steps[int]:
        yield Statement("SELECT 1")
        return caller.get()

    def call(number: int) -> Callable[[], int]:
        def run() -> int:
            caller.set(number)
            return store.run(Flow(steps, short=True))

        return run

    assert [future.result() for future in while_locked(store, path, *map(call, range(5)))] == [0, 1, 2, 3, 4]
    assert groups == [4]


def test_tasks_share_commits_and_a_cancelled_one_does_not_run(
    store: SqliteStore, path: Path, groups: list[int]
) -> None:
    async def main() -> None:
        with locked(path):
            first = asyncio.create_task(store.arun(store.jobs.enqueue([spec("first")], "default")))
            await asyncio.to_thread(until, lambda: store._shared._led and waiting(store) == 0, "it leads")
            tasks = [asyncio.create_task(store.arun(store.jobs.enqueue([spec("other")], "default"))) for _ in range(10)]
            bad = asyncio.create_task(store.arun(fails(ValueError("broken"))))
            await asyncio.sleep(0)
            assert waiting(store) == 11
            tasks[3].cancel()
            first.cancel()  # it has begun, and is committed
            await asyncio.sleep(0)
        results = await asyncio.gather(first, *tasks, bad, return_exceptions=True)
        assert [type(result).__name__ for result in results if not isinstance(result, list)] == [
            "CancelledError",
            "CancelledError",
            "ValueError",
        ]

    asyncio.run(main())
    assert groups == [10]
    assert rows(path, "SELECT kind, count(*) FROM holdfast_job_state GROUP BY kind") == [("first", 1), ("other", 9)]


class Odd(BaseException):
    """Not an ``Exception``."""


def test_an_odd_error_does_not_end_the_thread_of_the_tasks(store: SqliteStore, path: Path) -> None:
    async def main() -> None:
        with locked(path):
            flows = [store.jobs.enqueue([spec()], "default"), fails(Odd()), store.jobs.enqueue([spec()], "default")]
            tasks = [asyncio.create_task(store.arun(flow)) for flow in flows]
            await asyncio.sleep(0)
        for task, odd in zip(tasks, (False, True, False), strict=True):
            error = (await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 10))[0]
            assert isinstance(error, Odd) == odd
        await asyncio.wait_for(store.arun(store.jobs.enqueue([spec()], "default")), 10)

    asyncio.run(main())
    assert rows(path, "SELECT count(*) FROM holdfast_job_state") == [(3,)]
    assert rows(path, "SELECT * FROM mine") == []


def test_threads_and_tasks_share_commits(store: SqliteStore, path: Path, groups: list[int]) -> None:
    async def tasks() -> None:
        async def several() -> None:
            for _ in range(20):
                await store.arun(store.jobs.enqueue([spec()], "default"))

        await asyncio.gather(*(several() for _ in range(10)))

    def several() -> None:
        for _ in range(20):
            put_one(store)

    with ThreadPoolExecutor(max_workers=9) as pool:
        futures = [pool.submit(several) for _ in range(8)] + [pool.submit(asyncio.run, tasks())]
        for future in futures:
            future.result(timeout=60)
    assert rows(path, "SELECT count(*), (SELECT count(*) FROM holdfast_event) FROM holdfast_job_state") == [(360, 360)]
    assert sum(groups) > 100
    assert (store._shared._led, waiting(store)) == (False, 0)


def test_writes_under_way_end_when_the_store_is_closed(store: SqliteStore, path: Path) -> None:
    async def main() -> None:
        with locked(path):
            tasks = [asyncio.create_task(store.arun(store.jobs.enqueue([spec()], "default"))) for _ in range(5)]
            await asyncio.sleep(0.05)
            store.close()
        assert all(result[0].created for result in await asyncio.gather(*tasks))
        await store.arun(store.jobs.enqueue([spec()], "default"))

    asyncio.run(main())
    store.close()
    assert rows(path, "SELECT count(*) FROM holdfast_job_state") == [(6,)]


def test_an_interrupted_thread_passes_the_lead_on(store: SqliteStore, path: Path) -> None:
    """A leader is interrupted in the shared transaction, as by Ctrl-C: it is rolled back, and the others run."""

    def steps() -> Steps[None]:
        yield Statement("INSERT INTO mine VALUES (1)")
        raise KeyboardInterrupt

    leader, *others = while_locked(
        store,
        path,
        enqueuing(store, spec()),
        lambda: store.run(Flow(steps, short=True)),
        *(enqueuing(store, spec()) for _ in range(4)),
    )
    assert isinstance(others[0].exception(), KeyboardInterrupt)
    assert [future.exception() for future in (leader, *others[1:])] == [None] * 5
    assert rows(path, "SELECT count(*) FROM holdfast_job_state") == [(5,)]
    assert rows(path, "SELECT * FROM mine") == []
    assert (store._shared._led, waiting(store)) == (False, 0)


def test_forked_child_has_no_leader(store: SqliteStore, path: Path) -> None:
    def child() -> int:
        put_one(store)

        async def main() -> None:
            await asyncio.wait_for(store.arun(store.jobs.enqueue([spec()], "default")), timeout=10)

        asyncio.run(main())
        return waiting(store)

    asyncio.run(store.arun(store.jobs.enqueue([spec()], "default")))  # the thread that leads is not in the child
    with store._shared._guard:  # nor is one that leads at this moment, nor what waits for it
        store._shared._led = True
        store._shared._waiting.append(Write(store.jobs.enqueue([spec("parent")], "default")))
        assert in_a_fork(child) == 0
        store._shared._led = False
        store._shared._waiting.clear()
    put_one(store)
    assert rows(path, "SELECT kind, count(*) FROM holdfast_job_state GROUP BY kind") == [("mail.send", 4)]


MANY = """
import sys, threading
from holdfast.features.assembly import open_store
from tests.support.stores import put_one
store = open_store(sys.argv[1])
def several():
    while True:
        sys.stdout.write(put_one(store) + "\\n")
        sys.stdout.flush()
for _ in range(8):
    threading.Thread(target=several).start()
"""


def test_what_a_killed_process_reported_is_committed(store: SqliteStore, path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MANY, store.url], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ.copy()
    )
    assert process.stdout is not None
    reported = [process.stdout.readline() for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    reported += process.stdout.read().splitlines(keepends=True)
    process.wait()
    process.stdout.close()
    ids = {line.strip() for line in reported if line.endswith("\n")}
    stored = {row[0] for row in rows(path, "SELECT s.id FROM holdfast_job_state s JOIN holdfast_job j USING (n)")}
    assert len(ids) >= 200
    assert ids <= stored
    assert rows(path, "SELECT count(*), count(DISTINCT job_id) FROM holdfast_event") == [(len(stored), len(stored))]
    assert rows(path, "SELECT count(*) FROM holdfast_job") == [(len(stored),)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    put_one(store)


def test_one_plain_job_is_stored_as_one_of_a_batch(store: SqliteStore, path: Path) -> None:
    """It is inserted at once, by the triggers for hand-written SQL."""
    enqueue(store, spec(payload={"a": 1}))
    enqueue(store, spec(payload={"a": 1}), spec(payload={"a": 1}))

    def stored(table: str, *left_out: str) -> list[tuple[Any, ...]]:
        names = [row[1] for row in rows(path, f"PRAGMA table_info({table})") if row[1] not in left_out]
        return rows(path, f"SELECT {', '.join(names)} FROM {table}")

    for table, *left_out in (
        ("holdfast_job", "n", "id", "created_at"),
        ("holdfast_job_state", "n", "id", "position"),
        ("holdfast_event", "seq", "job_id", "at"),
    ):
        first, *others = stored(table, *left_out)
        assert others == [first] * 2
    events = "holdfast_job_state s JOIN holdfast_job j USING (n) JOIN holdfast_event e ON e.job_id = j.id"
    query = f"SELECT count(*) FROM {events} WHERE s.position = j.n * 100 AND e.at = j.created_at"
    assert rows(path, query) == [(3,)]


def test_a_plain_job_is_refused_by_the_first_rule(store: SqliteStore, path: Path) -> None:
    put_one(store)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE holdfast_dispatch SET ruled = 1, registered = 1")
    with pytest.raises(Refused) as error:
        put_one(store, tenant="unknown")
    assert error.value.code == "tenant_unregistered"
