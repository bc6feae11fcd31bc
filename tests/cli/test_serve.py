"""`holdfast serve` and `holdfast dev` as processes: address, authentication, and shutdown."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from holdfast import App, config
from holdfast.engine.states import State
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, error_of
from tests.cli.processes import started
from tests.support.waiting import until

pytestmark = pytest.mark.req("JF-14")

EXAMPLE = Path(__file__).parents[2] / "examples" / "dev_shop.py"


def address_of(process: subprocess.Popen[str]) -> str:
    """The address in the JSON document that the command prints first."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("}"):
            return str(json.loads(text)["address"])
    assert process.stderr is not None
    raise AssertionError(f"the process ended: {process.stderr.read()}")


def stopped(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


def test_serve_authenticates_and_stops_with_open_connections(sqlite_store: Store, tmp_path: Path) -> None:
    with closing(App(sqlite_store.url)) as app:
        text = app.tokens.issue("ada", roles=["admin"]).text
    command = ["serve", "--url", sqlite_store.url, "--port", "0", "--root-path", "/jobs/", "--json"]
    with started(command, cwd=tmp_path) as process:
        address = address_of(process)
        assert address.endswith("/jobs/")
        plain = address.removesuffix("jobs/")  # the URL behind a proxy that strips the prefix
        with httpx2.Client(base_url=plain, headers={"Accept": "text/html"}, timeout=60) as http:
            assert http.get("/livez").text == "ok\n"
            sent = http.get("/")
            assert (sent.status_code, sent.headers["location"]) == (303, "/jobs/login")
            assert http.get("/api/v1/tokens").status_code == 401
            known = {"Authorization": f"Bearer {text}"}
            assert http.get("/api/v1/tokens", headers=known).status_code == 200
            forged = http.get("/login", headers={"X-Forwarded-Proto": "https", "X-Forwarded-For": "1.2.3.4"})
            assert forged.status_code == 200
            lease = http.post("/api/v1/leases", headers=known, json={}).json()["lease"]
            # Neither a waiting request nor an unfinished one delays the shutdown.
            with socket.create_connection((http.base_url.host, http.base_url.port or 0)) as waiting:
                body = b'{"wait": 30}'
                waiting.sendall(
                    f"POST /api/v1/leases/{lease}/claim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {text}\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                with socket.create_connection((http.base_url.host, http.base_url.port or 0)) as half:
                    half.sendall(b"GET /livez HT")
                    until(lambda: http.get("/livez").status_code == 200, "the server still answers")
                    assert stopped(process) == 0
                waiting.settimeout(10)
                assert b" 200 " in waiting.recv(100), "the waiting request is answered with no jobs"


@pytest.mark.slow
def test_no_auth_is_allowed_only_on_loopback(
    bare: Holdfast, sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(config.URL_VARIABLE, sqlite_store.url)
    for address in ("0.0.0.0", "::", "192.0.2.7"):
        refused = bare("serve", "--no-auth", "--host", address, "--json")
        assert (refused.exit_code, error_of(refused)["code"]) == (4, "unsafe_address"), address
        assert bare("dev", str(EXAMPLE), "--host", address).exit_code == 4
    for wrong, code, exits in (
        (["--trust-proxy", "0.0.0.0/0"], "invalid_proxy", 2),
        (["--trust-proxy", "everybody"], "invalid_proxy", 2),
        (["--trust-proxy", "127.0.0.1", "--no-auth"], "conflicting_options", 2),
        (["--root-path", "jobs"], "invalid_root_path", 2),
        (["--url", "sqlite:///nowhere.db"], "no_database", 3),
        (["--host", "192.0.2.7"], "address_unusable", 1),
    ):
        refused = bare("serve", *wrong, "--json")
        assert (refused.exit_code, error_of(refused)["code"]) == (exits, code), wrong
    with started(["serve", "--no-auth", "--port", "0", "--json"], cwd=tmp_path, url=sqlite_store.url) as process:
        with httpx2.Client(base_url=address_of(process), timeout=60) as http:
            assert http.get("/api/v1/tokens").status_code == 200
            rebound = http.get("/api/v1/tokens", headers={"Host": "rebound.example"})
            assert rebound.status_code == 401
            other_page = http.post("/api/v1/leases", json={}, headers={"Sec-Fetch-Site": "cross-site"})
            assert other_page.status_code == 403
        assert stopped(process) == 0


@pytest.mark.slow
@pytest.mark.req("JF-16")
def test_dev_runs_worker_and_server_and_reloads_on_change(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "dev_shop.py")
    with started(["dev", "dev_shop.py", "--port", "0", "--as", "ada", "--json"], cwd=tmp_path) as process:
        with httpx2.Client(base_url=address_of(process), timeout=30) as http:
            assert "ada" in http.get("/").text
            database = f"sqlite:///{tmp_path / 'holdfast-dev.db'}"
            with closing(App(database)) as app:
                until(
                    lambda: bool(app.jobs.list(state=State.SUCCEEDED, kind="send_receipt")),
                    "an order was processed",
                )
                assert app.schedules.list()[0].kind == "take_orders"
                with (tmp_path / "dev_shop.py").open("a") as file:
                    file.write("\n\n@app.job()\ndef later() -> str:\n    return 'new'\n")
                late = app.enqueue("later", {})
                until(lambda: late.get().state is State.SUCCEEDED, "the new handler runs")
            assert http.get("/").status_code == 200
        assert stopped(process) == 0
