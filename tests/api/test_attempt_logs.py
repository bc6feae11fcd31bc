"""Logs and artifacts over HTTP and in the dashboard: read, followed, downloaded, and safe to open."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx2
import pytest

import holdfast
from holdfast import App, PayloadPolicy, Retry
from holdfast.stores.vault import new_key
from tests.api.conftest import client_of
from tests.app.conftest import NewApp
from tests.support.workers import serve

JOBS = "/api/v1/jobs"
HOSTILE = "<script>alert(1)</script>"
pytestmark = pytest.mark.req("SC-21", "JF-16", "SC-20")


async def work(app: App) -> None:
    await serve(app, burst=True)


async def code(http: httpx2.AsyncClient, path: str) -> tuple[int, str]:
    answer = await http.get(path)
    return answer.status_code, answer.json()["code"]


async def test_log_is_read_in_pieces_and_downloaded(app: App) -> None:
    @app.job()
    def talks(ctx: holdfast.SyncContext) -> None:
        ctx.log.info("first ä")
        ctx.log.warning(HOSTILE)

    job = app.enqueue("talks", {}).id
    async with client_of(app, role="viewer") as http:
        assert (await http.get(f"{JOBS}/{job}/log")).json()["attempt"] == 0
        await work(app)
        whole = (await http.get(f"{JOBS}/{job}/log")).json()
        assert (whole["attempt"], whole["offset"], whole["ended"], whole["ref"]) == (1, 0, True, None)
        assert [line.split(maxsplit=2)[2] for line in whole["text"].splitlines()] == ["first ä", HOSTILE]
        rest = (await http.get(f"{JOBS}/{job}/log", params={"offset": 10})).json()
        assert (rest["offset"], rest["next"]) == (10, whole["size"])
        last = (await http.get(f"{JOBS}/{job}/log", params={"tail": 70})).json()
        assert last["text"].endswith(HOSTILE + "\n")
        assert last["text"].count("\n") == 1
        file = await http.get(f"{JOBS}/{job}/log/download")
        assert (file.text, file.headers["content-type"]) == (whole["text"], "text/plain; charset=utf-8")
        assert file.headers["content-disposition"].startswith(f'attachment; filename="{job}-1.log"')
        assert file.headers["x-content-type-options"] == "nosniff"
        for path in ("log", "log/download"):
            assert await code(http, f"{JOBS}/{job}/{path}?attempt=2") == (404, "attempt_not_found")
            assert (await http.get(f"{JOBS}/{job}/{path}?attempt=x")).status_code == 422
        assert await code(http, f"{JOBS}/{job}/log?offset=1&tail=1") == (422, "conflicting_options")
        page = (await http.get(f"/jobs/{job}")).text
        assert "first ä" in page
        assert HOSTILE not in page, "it is escaped"
        assert (await http.get(f"/jobs/{job}/log?attempt=1")).text == whole["text"]
        assert (await http.get(f"/jobs/{job}/log?attempt=x")).status_code == 422
    async with client_of(app, role="viewer", tenant="acme") as other:
        for path in (f"{JOBS}/{job}/log", f"{JOBS}/{job}/log/download", f"/jobs/{job}/log"):
            assert (await other.get(path)).status_code == 404


async def test_output_and_files_of_a_command_are_downloaded(new_app: NewApp, tmp_path: Path) -> None:
    app = new_app(artifacts=tmp_path / "store")
    make = (
        "import os; print('ready'); open(os.environ['HOLDFAST_ARTIFACTS'] + '/a b.html', 'w').write('" + HOSTILE + "')"
    )
    kind = app.command("makes", [sys.executable, "-c", make], log_dir=tmp_path, retry=Retry(max_attempts=1))
    job = kind.enqueue().id
    await work(app)
    async with client_of(app, role="viewer") as http:
        log = (await http.get(f"{JOBS}/{job}/log")).json()
        assert (log["text"], log["ref"].partition("://")[0]) == ("ready\n", "artifact")
        (attempt,) = (await http.get(f"{JOBS}/{job}/attempts")).json()["items"]
        assert (attempt["outcome"], attempt["exit_code"], attempt["payload"], attempt["log"]) == (
            "succeeded",
            0,
            {},
            log["ref"],
        )
        page = (await http.get(f"/jobs/{job}")).text
        assert "ready" in page
        assert f'href="/jobs/{job}/artifacts/a%20b.html?attempt=1"' in page
        for below in (f"{JOBS}/{job}", f"/jobs/{job}"):
            file = await http.get(f"{below}/artifacts/a%20b.html?attempt=1")
            assert (file.text, file.headers["content-type"]) == (HOSTILE, "application/octet-stream")
            assert file.headers["content-disposition"].startswith("attachment;")
            assert file.headers["x-content-type-options"] == "nosniff"
            for name in ("../../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "%00", "none"):
                answer = await http.get(f"{below}/artifacts/{name}")
                assert answer.status_code in (400, 404, 422), (name, answer.text)
    other_app = new_app(artifacts=tmp_path / "another store")
    async with client_of(other_app, role="viewer") as http:
        assert await code(http, f"{JOBS}/{job}/log") == (404, "artifact_missing")
        shown = await http.get(f"/jobs/{job}")
        assert shown.status_code == 200
        assert "is not in the artifact store" in shown.text


async def test_sealed_and_restricted_logs_are_not_shown(new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_KEYS", f"k1:{new_key()}")
    app = new_app()

    @app.job()
    def sealed(ctx: holdfast.SyncContext) -> None:
        ctx.log.info("canary-1")

    @app.job(payload_rules=PayloadPolicy(restricted=True))
    def secret(ctx: holdfast.SyncContext) -> None:
        ctx.log.info("canary-2")

    first, second = app.enqueue("sealed", {}).id, app.enqueue("secret", {}).id
    await work(app)
    assert "canary-1" in (await asyncio.to_thread(app.jobs.log, first)).text, "a program with the key can read it"
    async with client_of(app, role="admin") as http:
        for path in ("log", "log/download"):
            assert await code(http, f"{JOBS}/{first}/{path}") == (409, "log_sealed")
            assert await code(http, f"{JOBS}/{second}/{path}") == (403, "restricted")
        for job, message in ((first, "sealed with key"), (second, "")):
            page = await http.get(f"/jobs/{job}")
            assert page.status_code == 200
            assert message in page.text
            assert "canary" not in page.text
            assert (await http.get(f"/jobs/{job}/log")).status_code in (403, 409)
