"""Checkpoints and steps above the inline limit: stored in the artifact store, read back unchanged, deleted in time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Retry, State, SyncContext
from holdfast.app.internals import session_of
from holdfast.engine.retry import fixed
from holdfast.errors import Conflict, HoldfastError, InvalidSetting, NotFound, Refused
from holdfast.features.payloads.operations import rotate
from holdfast.stores.vault import EMPTY, new_key
from tests.app.conftest import NewApp
from tests.support.direct_sql import open_by_hand
from tests.support.stores import forward
from tests.support.workers import work_off

pytestmark = pytest.mark.req("CX-8")

AGAIN = Retry(max_attempts=3, backoff=fixed(0))
LARGE = "canary " * 180_000  # 1.26 MB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


def blobs(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


def in_database(app: App) -> int:
    """The number of characters of these values that are stored in the database."""
    with closing(open_by_hand(session_of(app).store.url)) as by_hand:
        rows = by_hand.execute("select value from checkpoint union all select value from step where value is not null")
        return sum(len(str(row[0])) for row in rows)


def saving(app: App, calls: list[str]) -> Any:
    def fetch() -> list[str]:
        calls.append("fetch")
        return [LARGE]

    @app.job(retry=AGAIN)
    async def crawl(ctx: Context) -> int:
        pages = await ctx.step("fetch", fetch)
        seen = await ctx.checkpoint.load("pages", [])
        await ctx.checkpoint.save([*seen, LARGE], "pages")
        if ctx.attempt < 3:
            raise ConnectionError("cut off")
        return len(pages[0]) + sum(map(len, seen))

    return crawl


@pytest.mark.every_case
def test_large_values_are_read_back_by_later_attempts_and_callers(new_app: NewApp, folder: Path) -> None:
    app, calls = new_app(artifacts=folder), list[str]()
    handle = saving(app, calls).enqueue()
    for _ in range(3):
        work_off(app)
    assert handle.result() == 3 * len(LARGE)
    assert calls == ["fetch"], "the step was read from the artifact store"
    assert in_database(app) < 2_000
    expected = [LARGE] * 3
    assert app.jobs.checkpoints(handle.id) == handle.checkpoints() == {"pages": expected}
    assert app.jobs.steps(handle.id)[0].value == handle.steps()[0].value == [LARGE]
    assert app.jobs.checkpoints(handle.id, tenant="*") == {"pages": expected}

    # Replaced objects are deleted, referenced ones stay; cleaning deletes the rest.
    assert len(blobs(folder)) >= 2
    app.retention.sweep()
    assert len(blobs(folder)) == 2
    assert handle.checkpoints() == {"pages": expected}
    app.retention.set(clean_after="1h")
    forward(session_of(app).store, 4000)
    app.retention.sweep()
    assert blobs(folder) == []


def test_missing_or_changed_object_is_reported(new_app: NewApp, folder: Path) -> None:
    app = new_app(artifacts=folder)
    errors: list[HoldfastError] = []

    @app.job(retry=Retry(max_attempts=3, backoff=fixed(0)))
    def crawl(ctx: SyncContext) -> None:
        try:
            if ctx.checkpoint.load("pages") is None:
                ctx.checkpoint.save(LARGE, "pages")
        except HoldfastError as error:
            errors.append(error)
        if ctx.attempt < 3:
            raise ConnectionError("cut off")

    handle = crawl.enqueue()
    app.tick(1)
    (blob,) = blobs(folder)
    data = blob.read_bytes()
    blob.write_bytes(data.replace(b"canary", b"forged"))
    with pytest.raises(Conflict, match="artifact_changed"):
        handle.checkpoints()
    app.tick(1)
    blob.unlink()
    with pytest.raises(NotFound, match="artifact_missing"):
        app.jobs.checkpoints(handle.id)
    app.tick(1)
    assert [error.code for error in errors] == ["artifact_changed", "artifact_missing"]
    no_artifacts = without_artifacts(new_app())
    with pytest.raises(InvalidSetting, match="no_artifact_store"):
        no_artifacts.jobs.checkpoints(handle.id)
    blob.write_bytes(data)
    assert handle.checkpoints() == {"pages": LARGE}


def without_artifacts(app: App) -> App:
    session_of(app).vault = EMPTY  # an embedded database has a folder by default
    return app


@pytest.mark.every_case
def test_handler_can_catch_a_missing_artifact_store(new_app: NewApp) -> None:
    app, codes = without_artifacts(new_app()), list[str]()

    @app.job(retry=AGAIN)
    async def crawl(ctx: Context) -> str:
        for attempt in (ctx.checkpoint.save(LARGE), ctx.step("fetch", lambda: LARGE)):
            try:
                await attempt
            except HoldfastError as error:
                codes.append(error.code)
        await ctx.checkpoint.save("small")
        return await ctx.step("shrink", lambda: "small")

    @app.job(retry=Retry(max_attempts=2, backoff=fixed(3600)))
    def careless(ctx: SyncContext) -> None:
        ctx.checkpoint.save(LARGE)

    done, failed = crawl.enqueue(), careless.enqueue()
    work_off(app)
    assert done.state() is State.SUCCEEDED, done.get()
    assert codes == ["no_artifact_store"] * 2
    assert (done.result(), done.checkpoints()) == ("small", {"progress": "small"})
    job = failed.get()
    assert job.error_code == "no_artifact_store"
    assert "1,048,576 bytes" in str(job.error_message)
    assert job.state is State.RETRY_WAITING, "it is retried like any other failure"


@pytest.mark.req("CX-8", "DP-21")
def test_large_values_are_encrypted_in_the_artifact_store(
    new_app: NewApp, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    old, new = f"old:{new_key()}", f"new:{new_key()}"
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    app = new_app(artifacts=folder)
    handle = saving(app, []).enqueue()
    work_off(app)
    assert len(blobs(folder)) >= 2
    assert not any(b"canary" in blob.read_bytes() for blob in blobs(folder))
    assert handle.checkpoints()["pages"][0] == LARGE
    monkeypatch.setenv("HOLDFAST_KEYS", f"{new},{old}")
    rotated_app = new_app(artifacts=folder)
    rotated = rotate(session_of(rotated_app), session_of(rotated_app).vault)
    assert (rotated.unread, rotated.passed) == (0, 0)
    monkeypatch.setenv("HOLDFAST_KEYS", new)
    rotated_app = new_app(artifacts=folder)
    assert rotated_app.jobs.checkpoints(handle.id)["pages"][0] == LARGE
    assert rotated_app.jobs.steps(handle.id)[0].value == [LARGE]
    assert len(blobs(folder)) == 2, "the objects under the old key are deleted"
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    with pytest.raises(Refused, match="key_unknown"):
        new_app(artifacts=folder).jobs.checkpoints(handle.id)


@pytest.mark.req("CX-8", "DP-21")
def test_upload_without_a_record_is_deleted_later(new_app: NewApp, folder: Path) -> None:
    app = new_app(artifacts=folder)
    store, vault = session_of(app).store, session_of(app).vault

    @app.job(retry=AGAIN)
    def crawl(ctx: SyncContext) -> None:
        claim, run = ctx._run.claim, store.run
        part = vault.pack_part(f'"{LARGE}"', what="checkpoint", tenant="default", job_id=claim.id, place="x")
        assert part.ref is not None
        fence = (claim.id, claim.lease, claim.attempt)
        assert run(store.steps.note_upload(*fence, part.ref, "*"))
        assert run(store.steps.note_upload(*fence, part.ref, "*")), "a repeated call succeeds, as after a lost response"
        assert not run(store.steps.note_upload(claim.id, claim.lease, claim.attempt + 1, part.ref, "*"))
        with pytest.raises(HoldfastError):  # the object belongs to another job
            run(store.steps.note_upload(*fence, part.ref.replace(claim.id, "0" * 8 + claim.id[8:]), "*"))
        vault.upload(part, tenant="default", job_id=claim.id)
        ctx.checkpoint.save(LARGE, "saved")

    handle = crawl.enqueue()
    work_off(app)
    assert handle.state() is State.SUCCEEDED, handle.get().error_message
    assert len(blobs(folder)) == 2
    app.retention.sweep()
    assert len(blobs(folder)) == 2, "the worker may be about to record it"
    forward(store, 90_000)
    app.retention.sweep()
    assert len(blobs(folder)) == 1
    assert handle.checkpoints() == {"saved": LARGE}
