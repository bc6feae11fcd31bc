"""Objects in the artifact store are deleted with their jobs, even after crashes; referenced ones never are (DP-16)."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import App, PayloadPolicy, State
from holdfast.app.internals import session_of
from holdfast.engine.retry import fixed
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.features.payloads.operations import rotate
from holdfast.stores.artifacts import Artifacts, Directory, Reference
from holdfast.stores.vault import new_key
from holdfast.worker.retention import delete_orphans
from tests.app.conftest import NewApp
from tests.support.stores import forward, new_id
from tests.support.waiting import until
from tests.support.workers import work_off, working

LARGE = "x" * 4_000


def blobs(folder: Path) -> int:
    return sum(each.is_file() for each in folder.rglob("*"))


def storing(app: App) -> holdfast.Kind[[str], str]:
    @app.job(payload_rules=PayloadPolicy(store=True, max_bytes="1KB", max_result_bytes="1KB"))
    async def report(ctx: holdfast.Context, text: str) -> str:
        await ctx.artifact("report.csv", data=text[:9].encode() + ctx.job_id.encode())
        return text

    return report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.mark.req("DP-16", "DP-21")
def test_payload_result_and_artifacts_are_deleted_with_a_cleaned_job(new_app: NewApp, folder: Path) -> None:
    app = new_app(artifacts=folder)
    report = storing(app)
    gone, stays = report.enqueue(LARGE), report.using(tenant="acme").enqueue(LARGE)
    work_off(app)
    assert blobs(folder) == 6
    app.retention.set(clean_after="1h")
    forward(session_of(app).store, 4000)
    other_store = new_app(artifacts=folder / "other")  # it leaves objects that are not in its store alone
    assert other_store.retention.sweep(tenant="*")["delete"] == 0
    forward(session_of(app).store, 2000)
    (preview,) = [each for each in app.retention.preview(tenant="*") if each.action == "delete"]
    assert (preview.due, preview.capped, blobs(folder)) == (3, False, 6)
    with working(new_app(artifacts=folder), queues=("idle",)):
        until(lambda: blobs(folder) == 3, "a worker deletes the objects")
    assert not any(each.action == "delete" for each in app.retention.preview(tenant="*"))
    assert app.jobs.get(gone.id).state is State.CLEANED
    assert stays.result() == LARGE


class Failing(Directory):
    """Fails once in the middle of deleting."""

    broken = True

    def delete(self, key: str) -> None:
        super().delete(key)
        if self.broken:
            Failing.broken = False
            raise StoreUnavailable("cut off", code="artifacts_away")


@pytest.mark.req("DP-16", "DP-21")
async def test_interrupted_deletion_is_completed_by_the_next_run(app: App, folder: Path) -> None:
    own = App(session_of(app).store.url, name="tests", artifacts=folder)
    storing(own).enqueue(LARGE)
    await own.atick()
    own.retention.set(clean_after="1h")
    forward(session_of(app).store, 4000)
    app.retention.sweep()  # this app uses another artifact store
    forward(session_of(app).store, 700)
    Failing.broken = True
    with pytest.raises(StoreUnavailable):
        await delete_orphans(session_of(app).store, artifacts=Artifacts(Failing(folder)), tenant="*")
    assert blobs(folder) == 2, "one object is deleted, but that is not recorded"
    assert await session_of(app).arun(session_of(app).store.retention.orphans(10, "*")) == [], "not retried at once"
    forward(session_of(app).store, 4000 + 601)
    await delete_orphans(session_of(app).store, artifacts=Artifacts(Failing(folder)), tenant="*")
    assert blobs(folder) == 0
    await own.aclose()


@pytest.mark.req("DP-16", "DP-21", "SC-6")
def test_object_that_a_retry_still_references_is_kept(
    new_app: NewApp, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry is a separate job with the payload of the first: neither key rotation nor cleaning may delete it."""
    pytest.importorskip("cryptography")
    old = f"old:{new_key()}"
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    app = new_app(artifacts=folder)
    broken = True

    @app.job(
        retry=holdfast.Retry(max_attempts=2, backoff=fixed(0)),
        retry_as="new_job",
        payload_rules=PayloadPolicy(store=True, max_bytes="1KB"),
    )
    async def echo(text: str) -> int:
        if broken:
            raise ValueError("not yet")
        return len(text)

    rotated, first = echo.enqueue(LARGE), echo.enqueue(LARGE)
    until(lambda: all(_is_dead(app, each.id) for each in (rotated, first)), "both are dead")
    assert blobs(folder) == 2
    app.retention.set(clean_after="1s", state="failed")
    forward(session_of(app).store, 60)
    assert app.retention.sweep()["clean"] == 2
    assert blobs(folder) == 2, "their retries are dead letters that may be redriven"
    monkeypatch.setenv("HOLDFAST_KEYS", f"new:{new_key()},{old}")
    rotated_app = new_app(artifacts=folder)
    rotated_app.job("echo", payload_rules=PayloadPolicy(store=True))(echo.function)
    assert rotate(session_of(rotated_app), session_of(rotated_app).vault).resealed == 2
    forward(session_of(app).store, 1000)
    rotated_app.retention.sweep()
    assert blobs(folder) == 2, "each has its own object, and the old ones are deleted"
    broken = False
    for each in (rotated, first):
        rotated_app.jobs.redrive(rotated_app.jobs.chain(each.id)[-1].id)
    work_off(rotated_app)
    assert {rotated_app.jobs.chain(each.id)[-1].state for each in (rotated, first)} == {State.SUCCEEDED}


def _is_dead(app: App, job_id: str) -> bool:
    work_off(app)
    return app.jobs.chain(job_id)[-1].state is State.DEAD_LETTER


@pytest.mark.req("DP-16", "DP-21")
def test_object_that_no_job_references_is_removed_after_a_week(new_app: NewApp, folder: Path) -> None:
    app = new_app(artifacts=folder)
    handle = storing(app).enqueue(LARGE)
    work_off(app)
    assert app.artifacts is not None
    lost = app.artifacts.put(b"lost", tenant="default", job_id=new_id())
    others = app.artifacts.put(b"lost", tenant="acme", job_id=new_id())
    (folder / "notes.txt").write_text("not an artifact")
    assert app.retention.remove_orphans() == 0, "a producer may be about to enqueue it"
    forward(session_of(app).store, 8 * 86_400)
    assert app.retention.remove_orphans() == 1
    assert app.retention.remove_orphans() == 0, "already found"
    assert app.retention.sweep()["delete"] == 0, "it may be an archive that is just being recorded"
    forward(session_of(app).store, 3700)
    assert app.retention.sweep()["delete"] == 1
    assert not app.artifacts.exists(lost, tenant="default")
    assert app.artifacts.exists(others, tenant="acme"), "objects of other tenants are not considered"
    assert handle.result() == LARGE
    assert app.retention.remove_orphans(tenant="*") == 1
    assert (folder / "notes.txt").exists()
    assert Reference.at("default/../etc") is None

    class Plain:
        put = get = delete = exists = None

    for store, code in ((Plain(), "artifacts_unlisted"), (None, "no_artifact_store")):
        other = new_app(artifacts=store)
        other.retention._artifacts = None if store is None else Artifacts(store)  # type: ignore[arg-type]
        with pytest.raises(InvalidSetting, match=code):
            other.retention.remove_orphans()
