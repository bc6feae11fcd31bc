"""What jobs had in the artifact store goes with them, whoever dies; what a job still names never does (DP-16)."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import App, PayloadPolicy, State
from holdfast.engine.retry import fixed
from holdfast.errors import InvalidSetting, StoreUnavailable
from holdfast.features.payloads.operations import rotate
from holdfast.stores.artifacts import Artifacts, Directory, Reference
from holdfast.stores.vault import new_key
from holdfast.worker.maintenance import clear
from tests.app.conftest import NewApp
from tests.support.stores import forward, new_id
from tests.support.waiting import until
from tests.support.workers import work_off, working

LARGE = "x" * 4_000


def blobs(folder: Path) -> int:
    return sum(each.is_file() for each in folder.rglob("*"))


def storing(app: App) -> holdfast.Kind[[str], str]:
    @app.job(rules=PayloadPolicy(store=True, max_bytes="1KB", max_result_bytes="1KB"))
    async def report(ctx: holdfast.Context, text: str) -> str:
        await ctx.artifact("report.csv", data=text[:9].encode() + ctx.job_id.encode())
        return text

    return report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.mark.req("DP-16", "DP-21")
def test_payload_result_and_artifacts_go_after_the_job_is_cleaned(new_app: NewApp, folder: Path) -> None:
    app = new_app(artifacts=folder)
    report = storing(app)
    gone, stays = report.enqueue(LARGE), report.using(tenant="acme").enqueue(LARGE)
    work_off(app)
    assert blobs(folder) == 6
    app.retention.set(clean_after="1h")
    forward(app._store, 4000)
    elsewhere = new_app(artifacts=folder / "other")  # what is not there is left to whoever has it
    assert elsewhere.retention.sweep(tenant="*")["delete"] == 0
    forward(app._store, 2000)
    (told,) = [each for each in app.retention.preview(tenant="*") if each.action == "delete"]
    assert (told.due, told.capped, blobs(folder)) == (3, False, 6)
    with working(new_app(artifacts=folder), queues=("idle",)):
        until(lambda: blobs(folder) == 3, "a worker deletes them")
    assert not any(each.action == "delete" for each in app.retention.preview(tenant="*"))
    assert app.jobs.get(gone.id).state is State.CLEANED
    assert stays.result() == LARGE


class Failing(Directory):
    """Dies in the middle of deleting, once."""

    broken = True

    def delete(self, key: str) -> None:
        super().delete(key)
        if self.broken:
            Failing.broken = False
            raise StoreUnavailable("cut off", code="artifacts_away")


@pytest.mark.req("DP-16", "DP-21")
async def test_who_dies_while_deleting_leaves_it_to_the_next(app: App, folder: Path) -> None:
    own = App(app._store.url, name="tests", artifacts=folder)
    storing(own).enqueue(LARGE)
    await own.atick()
    own.retention.set(clean_after="1h")
    forward(app._store, 4000)
    app.retention.sweep()  # which knows no artifact store, or another one
    forward(app._store, 700)
    Failing.broken = True
    with pytest.raises(StoreUnavailable):
        await clear(app._store, artifacts=Artifacts(Failing(folder)), tenant="*")
    assert blobs(folder) == 2, "one is gone, and it is not written down"
    assert await app._session.arun(app._session.store.retention.orphans(10, "*")) == [], "not at once"
    forward(app._store, 4000 + 601)
    await clear(app._store, artifacts=Artifacts(Failing(folder)), tenant="*")
    assert blobs(folder) == 0
    await own.aclose()


@pytest.mark.req("DP-16", "DP-21", "SC-6")
def test_what_a_retry_still_names_stays(new_app: NewApp, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a job of its own with the payload of the first: neither another key nor cleaning takes that away."""
    pytest.importorskip("cryptography")
    old = f"old:{new_key()}"
    monkeypatch.setenv("HOLDFAST_KEYS", old)
    app = new_app(artifacts=folder)
    broken = True

    @app.job(
        retry=holdfast.Retry(max_attempts=2, backoff=fixed(0)),
        retry_as="new_job",
        rules=PayloadPolicy(store=True, max_bytes="1KB"),
    )
    async def echo(text: str) -> int:
        if broken:
            raise ValueError("not yet")
        return len(text)

    turning, first = echo.enqueue(LARGE), echo.enqueue(LARGE)
    until(lambda: all(_is_dead(app, each.id) for each in (turning, first)), "both are dead")
    assert blobs(folder) == 2
    app.retention.set(clean_after="1s", state="failed")
    forward(app._store, 60)
    assert app.retention.sweep()["clean"] == 2
    assert blobs(folder) == 2, "their retries are dead letters that may be redriven"
    monkeypatch.setenv("HOLDFAST_KEYS", f"new:{new_key()},{old}")
    turned = new_app(artifacts=folder)
    turned.job("echo", rules=PayloadPolicy(store=True))(echo.function)
    assert rotate(turned._session, turned._session.vault).resealed == 2
    forward(app._store, 1000)
    turned.retention.sweep()
    assert blobs(folder) == 2, "each has its own now, and the old ones are gone"
    broken = False
    for each in (turning, first):
        turned.jobs.redrive(turned.jobs.chain(each.id)[-1].id)
    work_off(turned)
    assert {turned.jobs.chain(each.id)[-1].state for each in (turning, first)} == {State.SUCCEEDED}


def _is_dead(app: App, job_id: str) -> bool:
    work_off(app)
    return app.jobs.chain(job_id)[-1].state is State.DEAD_LETTER


@pytest.mark.req("DP-16", "DP-21")
def test_what_no_job_ever_named_is_found_when_it_is_a_week_old(new_app: NewApp, folder: Path) -> None:
    app = new_app(artifacts=folder)
    handle = storing(app).enqueue(LARGE)
    work_off(app)
    assert app.artifacts is not None
    lost = app.artifacts.put(b"lost", tenant="default", job_id=new_id())
    others = app.artifacts.put(b"lost", tenant="acme", job_id=new_id())
    (folder / "notes.txt").write_text("not ours")
    assert app.retention.remove_orphans() == 0, "somebody may be about to enqueue it"
    forward(app._store, 8 * 86_400)
    assert app.retention.remove_orphans() == 1
    assert app.retention.remove_orphans() == 0, "found once"
    assert app.retention.sweep()["delete"] == 1
    assert not app.artifacts.exists(lost, tenant="default")
    assert app.artifacts.exists(others, tenant="acme"), "another tenant's is not this one's to find"
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
