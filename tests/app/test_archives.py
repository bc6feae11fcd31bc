"""Archives: finished jobs with ledger, attempts and results in the artifact store, before retention removes them."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Retry, SyncContext
from holdfast.app.internals import maintenance_tasks, session_of
from holdfast.errors import Conflict, NotFound
from holdfast.features.archives import model
from holdfast.stores.artifacts import Directory
from holdfast.stores.vault import new_key
from holdfast.worker import retention
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.stores import forward, new_id
from tests.support.workers import work_off

pytestmark = pytest.mark.req("DP-28")

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def archiving_app(new_app: NewApp, files: Path) -> App:
    app = new_app(artifacts=files)

    @app.job()
    def add(ctx: SyncContext, one: int, other: int = 1) -> int:
        ctx.log.info("adding")
        return one + other

    @app.job()
    def fail() -> None:
        raise ValueError("it broke")

    return app


def finish(app: App, *numbers: int) -> list[str]:
    ids = [app.enqueue("add", {"one": number}).id for number in numbers]
    work_off(app)
    return ids


def ended(app: App, ids: Sequence[str]) -> list[model.Finished]:
    jobs = [app.jobs.get(job_id) for job_id in ids]
    return [model.Finished(job.id, job.tenant, job.finished_at) for job in jobs if job.finished_at is not None]


def test_policy_with_archive_keeps_jobs_until_they_are_archived(archiving_app: App, new_app: NewApp) -> None:
    app = archiving_app
    ids = finish(app, 1, 2, 3)
    policy = app.retention.set(clean_after="1h", purge_after="2h", archive=True)
    assert policy.archive
    forward(session_of(app).store, 3 * HOUR)
    store = session_of(app).store
    swept = store.run(store.retention.sweep())
    while swept.action == "prune":
        swept = store.run(store.retention.sweep())
    assert (swept.action, swept.done, swept.held, swept.held_by) == ("clean", 0, 3, "archive")
    assert app.archives.list() == []
    assert app.archives.run() == model.ArchiveRun(3, 1)
    assert app.archives.run() == model.ArchiveRun(0, 0)
    forward(session_of(app).store, 60)
    assert app.retention.sweep()["clean"] == 3
    with pytest.raises(NotFound):
        app.archives.read("01a1de74-eb8c-70f1-843b-cac5f6817387")
    document = app.archives.read(ids[1])
    assert document["job"]["payload"] == {"one": 2}
    assert document["result"]["value"] == 3
    assert document["event"][0]["type"] == "enqueue"
    assert document["job_state"]["state"] == "succeeded"
    assert "adding" in json.dumps(document["attempt_log"])


def test_one_run_of_retention_archives_cleans_and_purges(archiving_app: App) -> None:
    app = archiving_app
    ids = finish(app, *range(5))
    app.retention.set(purge_after="2h", archive=True)
    forward(session_of(app).store, 3 * HOUR)
    done = app.retention.sweep()
    assert done["clean"] == 5
    assert done["purge"] >= 4  # SQLite keeps the newest event
    (archive,) = app.archives.list()
    assert (archive.jobs, archive.first_job, archive.last_job) == (5, ids[0], ids[-1])
    assert (archive.seal is None) == (archive.seal_digest is None)
    with pytest.raises(NotFound):
        app.jobs.get(ids[0])
    assert app.archives.read(ids[0])["result"]["value"] == 1
    assert app.archives.verify(archive.id).ok


def test_archive_is_private_verifiable_and_shows_tampering(archiving_app: App, files: Path) -> None:
    app = archiving_app
    finish(app, 1, 2)
    app.retention.set(purge_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    app.archives.run()
    (archive,) = app.archives.list()
    path = files / archive.tenant / archive.id / archive.ref.rpartition("/")[2]
    assert path.stat().st_mode & 0o777 == 0o600
    lines = gzip.decompress(path.read_bytes()).splitlines()
    assert json.loads(lines[0]) == {"holdfast": "archive", "format": 1, "id": archive.id, "tenant": "default"}
    assert json.loads(lines[-1])["end"]["jobs"] == archive.jobs == len(lines) - 2
    assert app.archives.verify(archive.id) == model.ArchiveCheck(archive.id, 2, ())
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert "was changed" in app.archives.verify(archive.id).problems[0]
    path.unlink()
    assert "is not in the artifact store" in app.archives.verify(archive.id).problems[0]
    changed = b"\n".join([lines[0], lines[1].replace(b"succeeded", b"cancelled"), *lines[2:]]) + b"\n"
    for data in (gzip.compress(changed), gzip.compress(b"\n".join(lines[:-1]) + b"\n"), whole[:-20], b"x"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        with pytest.raises(Conflict) as refused:
            list(model.read_documents(archive.id, path))
        assert refused.value.code == "archive_damaged"


def test_shortened_document_keeps_the_first_values_and_the_size_of_others() -> None:
    rows = [{"n": n, "value": "x" * 2_000} for n in range(3)]
    short = model.shortened({"job": {"id": "a", "payload": "y" * 3_000}, "step": rows, "restricted": False}, 5_500)
    assert short["job"] == {"id": "a", "payload": "y" * 3_000}
    assert short["step"] == [rows[0], *({"n": n, "value": {"$holdfast": {"omitted": 2_002}}} for n in (1, 2))]
    assert short["restricted"] is False
    many = model.shortened({"event": [{"seq": n, "note": "z" * 500} for n in range(100)]}, 5_500)
    assert len(json.dumps(many)) < 12_000
    assert len(many["event"]) == 100


def test_redriven_job_is_archived_again(archiving_app: App) -> None:
    app = archiving_app
    job_id = app.enqueue("fail", {}, retry=Retry(max_attempts=1)).id
    work_off(app)
    app.retention.set(state="dead_letter", clean_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    assert app.archives.run().jobs == 1
    app.jobs.redrive(job_id)
    work_off(app)
    forward(session_of(app).store, 2 * HOUR)
    store = session_of(app).store
    while (swept := store.run(store.retention.sweep())).action == "prune":
        pass
    assert (swept.done, swept.held_by) == (0, "archive")
    assert app.archives.run().jobs == 1
    forward(session_of(app).store, 60)
    assert app.retention.sweep()["clean"] == 1
    assert len(app.archives.list()) == 2


def test_encrypted_and_restricted_payloads_stay_so(
    new_app: NewApp, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", f"one:{new_key()}")
    app = new_app(artifacts=files)

    @app.job()
    def secret(text: str) -> str:
        return text

    app.payload_rules.set("secret", restricted=True)
    job_id = secret.enqueue("very-secret-words").id
    work_off(app)
    app.retention.set(clean_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    app.retention.sweep()
    document = app.archives.read(job_id)
    assert document["restricted"]
    assert "very-secret-words" not in json.dumps(document)
    assert "$holdfast" in document["job"]["payload"]
    assert "$holdfast" in document["result"]["value"]


def test_stored_contents_are_copied_and_are_no_orphans(
    new_app: NewApp, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app(artifacts=files)

    @app.job()
    def large(text: str) -> str:
        return text

    app.payload_rules.set("large", max_bytes=1000, store=True)
    job_id = large.enqueue("x" * 50_000).id
    work_off(app)
    app.retention.set(clean_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    with monkeypatch.context() as whole:
        whole.setattr(Directory, "get", None)  # files of any size are copied and verified in pieces
        app.retention.sweep()
        assert all(app.archives.verify(archive.id).ok for archive in app.archives.list())
        document = app.archives.read(job_id)
    assert not document["restricted"]
    assert document["files"]
    assert app.artifacts is not None
    for old, copy in document["files"].items():
        assert job_id in old
        assert b"x" * 1000 in app.artifacts.get(copy, tenant="default")
        assert not app.artifacts.exists(old, tenant="default"), "cleaning has deleted it"
    forward(session_of(app).store, 30 * 24 * HOUR)
    app.retention.remove_orphans()
    app.retention.sweep()
    assert all(app.archives.verify(archive.id).ok for archive in app.archives.list())


def test_archives_belong_to_their_tenant(archiving_app: App) -> None:
    app = archiving_app
    app.retention.set(clean_after="1h", archive=True, tenant="*")
    own = finish(app, 1)[0]
    with app.tenant("acme"):
        other = app.enqueue("add", {"one": 5}).id
    work_off(app, tenant="*")
    forward(session_of(app).store, 2 * HOUR)
    assert app.archives.run(tenant="*") == model.ArchiveRun(2, 2)
    assert {archive.tenant for archive in app.archives.list(tenant="*")} == {"default", "acme"}
    assert [archive.tenant for archive in app.archives.list()] == ["default"]
    assert app.archives.read(own)["job"]["tenant"] == "default"
    with pytest.raises(NotFound):
        app.archives.read(other)
    with app.tenant("acme"):
        assert app.archives.read(other)["result"]["value"] == 6


async def test_async_forms_and_pages(archiving_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app = archiving_app
    monkeypatch.setattr(retention, "FILE_JOBS", 2)
    ids = await asyncio.to_thread(finish, app, *range(5))
    await app.retention.aset(clean_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    assert await app.archives.arun() == model.ArchiveRun(5, 3)
    first = await app.archives.alist(limit=2)
    rest = await app.archives.alist(limit=2, before=first[-1].id)
    assert [archive.jobs for archive in (*first, *rest)] == [1, 2, 2]
    assert all([(await app.archives.averify(archive.id)).ok for archive in (*first, *rest)])
    assert (await app.archives.aread(ids[3]))["result"]["value"] == 4
    assert (await app.archives.aget(first[0].id)) == first[0]


PROGRAM = """
import os, signal, sys
from pathlib import Path
from holdfast import App
from holdfast.stores.artifacts import Directory

class Deadly(Directory):
    def put_file(self, key, path, digest):
        super().put_file(key, path, digest)
        os.kill(os.getpid(), signal.SIGKILL)

App(sys.argv[1], artifacts=Deadly(sys.argv[2])).archives.run()
"""


def test_killed_run_loses_nothing_and_stores_the_same_file_again(archiving_app: App, files: Path) -> None:
    app = archiving_app
    ids = finish(app, *range(4))
    app.retention.set(purge_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    done = subprocess.run([sys.executable, "-c", PROGRAM, session_of(app).store.url, files], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    stored = [path for path in files.rglob("*") if path.is_file()]
    assert len(stored) == 1
    assert app.archives.list() == []
    assert [app.jobs.get(job_id).state for job_id in ids] == ["succeeded"] * 4
    before = stored[0].read_bytes()
    assert app.archives.run().jobs == 4
    assert [path for path in files.rglob("*") if path.is_file()] == stored, "the same name"
    assert stored[0].read_bytes() == before
    assert app.archives.verify(app.archives.list()[0].id).ok


def test_worker_archives_what_is_due(archiving_app: App) -> None:
    app = archiving_app
    finish(app, 1, 2)
    app.retention.set(clean_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    (task,) = [each for each in maintenance_tasks(app, "*", 1.0, 1.0) if each.name == "archives"]
    assert task.run is not None

    async def once() -> int:
        assert task.run is not None
        return await task.run(session_of(app).store)

    assert asyncio.run(once()) == 0
    assert [archive.jobs for archive in app.archives.list()] == [2]


def test_memory_does_not_grow_with_the_number_of_jobs(archiving_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app = archiving_app
    read: list[int] = []
    store, rows = session_of(app).store, session_of(app).store.archives.rows

    def counted(jobs: Sequence[str], tenant: str) -> Any:
        read.append(len(jobs))
        return rows(jobs, tenant)

    monkeypatch.setattr(store.archives, "rows", counted)
    finish(app, *range(25))
    app.retention.set(clean_after="1h", archive=True)
    forward(store, 2 * HOUR)
    app.archives.run()
    assert read == [10, 10, 5]


def test_without_an_artifact_store_it_is_said(new_app: NewApp) -> None:
    with closing(new_app()) as app:
        app.archives._artifacts = None
        with pytest.raises(Exception, match="no artifact store is configured"):
            app.archives.run()


def test_archive_found_as_an_orphan_before_it_is_recorded_stays(
    archiving_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = archiving_app
    finish(app, 1, 2)
    app.retention.set(purge_after="1h", archive=True)
    forward(session_of(app).store, 8 * DAY)
    record = session_of(app).store.archives.record

    def found_before(*args: Any) -> Any:
        assert app.retention.remove_orphans() == 1
        assert session_of(app).store.run(session_of(app).store.retention.orphans()) == [], (
            "not before an hour has passed"
        )
        return record(*args)

    monkeypatch.setattr(session_of(app).store.archives, "record", found_before)
    app.archives.run()
    (archive,) = app.archives.list()
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        assert by_hand.execute("select count(*) from orphaned_file") == [(0,)]
        by_hand.execute(
            "insert into orphaned_file (tenant, ref, job_id, at, again_at)"
            " select a.tenant, a.ref, a.id, a.created_at, a.created_at from archive a"
        )
    forward(session_of(app).store, 2 * HOUR)
    assert app.retention.sweep()["delete"] == 0
    assert app.archives.verify(archive.id).ok


def test_job_is_found_among_many_archives(archiving_app: App) -> None:
    app, store = archiving_app, session_of(archiving_app).store
    ids = finish(app, *range(3))
    app.retention.set(purge_after="1h", archive=True)
    forward(store, 2 * HOUR)
    ends = ended(app, ids)
    files = app.artifacts
    assert files is not None
    for _ in range(101):
        other = new_id()
        writer = model.ArchiveWriter(other, "default")
        digest, size = writer.finish()
        ref = files.put_file(writer.path, digest, tenant="default", job_id=other)
        writer.close()
        store.run(store.archives.record(other, ref, size, [ends[0], ends[2]], "ada", "default"))
    forward(store, 1)
    app.archives.run()
    assert app.archives.read(ids[1])["job"]["id"] == ids[1]


def test_file_has_jobs_of_one_day(archiving_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model.day_of("00000526-5bff-7000-8000-000000000000") == 0
    assert model.day_of("00000526-5c00-7000-8000-000000000000") == 1
    app = archiving_app
    ids = finish(app, 1, 2, 3)
    monkeypatch.setattr(retention, "day_of", lambda job_id: int(job_id == ids[2]))
    app.retention.set(purge_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    assert app.archives.run() == model.ArchiveRun(3, 2)
    ranges = {(each.first_job, each.last_job) for each in app.archives.list()}
    assert ranges == {(ids[0], ids[1]), (ids[2], ids[2])}


def test_file_is_closed_at_its_size(archiving_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app = archiving_app
    ids = finish(app, *range(25))
    monkeypatch.setattr(retention, "FILE_BYTES", 1000)
    app.retention.set(purge_after="1h", archive=True)
    forward(session_of(app).store, 2 * HOUR)
    assert app.archives.run() == model.ArchiveRun(25, 3)
    assert sorted(archive.jobs for archive in app.archives.list()) == [5, 10, 10]
    assert all(app.archives.verify(archive.id).ok for archive in app.archives.list())
    assert app.archives.read(ids[17])["job"]["payload"] == {"one": 17}


def test_only_what_was_written_is_recorded(archiving_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app, store = archiving_app, session_of(archiving_app).store
    ids = finish(app, 1, 2, 3)
    app.retention.set(purge_after="1h", archive=True)
    forward(store, 2 * HOUR)
    rows = store.archives.rows
    monkeypatch.setattr(store.archives, "rows", lambda jobs, tenant: rows(jobs[:-1], tenant))
    assert app.archives.run() == model.ArchiveRun(2, 1)
    (archive,) = app.archives.list()
    assert (archive.jobs, archive.last_job) == (2, ids[1])
    assert app.archives.verify(archive.id).ok
    monkeypatch.setattr(store.archives, "rows", lambda jobs, tenant: rows([], tenant))
    assert app.archives.run() == model.ArchiveRun(0, 0), "nothing was written"
    monkeypatch.undo()
    assert app.archives.run() == model.ArchiveRun(1, 1), "the last one is not marked before"


def test_another_file_under_the_same_id_marks_no_job(archiving_app: App) -> None:
    app, store = archiving_app, session_of(archiving_app).store
    jobs = ended(app, finish(app, 1, 2))
    app.retention.set(purge_after="1h", archive=True)
    forward(store, 2 * HOUR)
    id = new_id()
    for ref, part in (("artifact://a", jobs[:1]), ("artifact://b", jobs)):
        assert store.run(store.archives.record(id, ref, 1, part, "ada", "default")).ref == "artifact://a"
    assert app.archives.run() == model.ArchiveRun(1, 1)


def test_rows_are_only_those_of_jobs_to_archive(archiving_app: App) -> None:
    app, store = archiving_app, session_of(archiving_app).store
    (done,) = finish(app, 1)
    waiting = app.enqueue("add", {"one": 2}).id

    def read() -> list[str]:
        return [each["job"]["id"] for each in store.run(store.archives.rows([done, waiting], "default"))]

    assert read() == [], "no policy"
    app.retention.set(purge_after="1h", archive=True)
    assert read() == [], "not due"
    forward(store, 2 * HOUR)
    assert read() == [done]
    app.archives.run()
    assert read() == [], "archived"


def test_origin_workflow_and_redrive_are_archived(archiving_app: App) -> None:
    app, store = archiving_app, session_of(archiving_app).store
    app.templates.set("sum", "add", {"one": 1})
    made = app.templates.enqueue("sum").id
    flow = app.workflow("sums")
    flow.add("add", {"one": 1}, name="only")
    node = flow.start()["only"].id
    dead = app.enqueue("fail", {}, retry=Retry(max_attempts=1)).id
    work_off(app)
    again = app.dead_letters.redrive_as(dead, {})
    work_off(app)
    app.retention.set(clean_after="1h", archive=True)
    app.retention.set(state="dead_letter", clean_after="1h", archive=True)
    forward(store, 2 * HOUR)
    found = store.run(store.archives.rows([made, node, dead, again], "default"))
    documents = {each["job"]["id"]: each for each in found}
    assert documents[made]["made_from"]["template"] == "sum"
    assert (documents[made]["node"], documents[node]["node"]["name"]) == (None, "only")
    assert documents[dead]["redriven_as"][0]["new_id"] == again
