"""/metrics for Prometheus (JF-15): its content, access and cost, and that deploy/ uses only existing metrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import App, Context, Retry, SyncContext
from holdfast.engine.job import Claim
from holdfast.features.health.model import CODES
from holdfast.features.tokens.model import scopes_of
from holdfast.server.app import make_service
from holdfast.server.auth import Identity
from holdfast.telemetry import observers, prometheus
from tests.app.conftest import NewApp
from tests.cli.processes import started
from tests.support.stores import new_id
from tests.support.waiting import until
from tests.support.workers import work_off

pytestmark = pytest.mark.req("JF-15")

ROOT = Path(__file__).parents[2]
HOSTILE = 'evil"} 1\nforged{x="\\'
TYPES = {"gauge", "histogram", "counter"}


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> prometheus.ProcessMetrics:
    """Metrics of a process that has just started."""
    monkeypatch.setattr(observers, "watchers", [])
    monkeypatch.setattr(prometheus, "_process", None)
    return prometheus.process_metrics()


def client_for(app: App, tenant: str, role: str = "viewer") -> httpx2.AsyncClient:
    known = Identity("prometheus", tenant, scopes_of([role]))
    service = make_service(app, authenticate=lambda _: known)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(service), base_url="http://127.0.0.1:1")


def read(text: str) -> dict[tuple[str, ...], float]:
    """All samples by name and label values, ordered by label name."""
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type in TYPES, family.name
        assert re.fullmatch(r"holdfast_[a-z_]+", family.name)
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


async def test_metrics_are_served_by_tenant_and_scope(new_app: NewApp, process: prometheus.ProcessMetrics) -> None:
    app = new_app()

    @app.job()
    async def fine(ctx: Context) -> None: ...

    @app.job(retry=Retry(max_attempts=1))
    async def fails(ctx: Context) -> None:
        raise ConnectionError("busy")

    await fine.aenqueue()
    await fails.aenqueue()
    await app.atick(10)
    await app.aenqueue("fine", queue=HOSTILE.replace("\n", " "))
    await app.aenqueue("fine", queue="theirs", tenant="acme")
    held = new_id()
    await app.reservations.aset(held, resource="printer")
    await app.reservations.arecord(held, "calibrate")  # its lease is not a worker's

    async with client_for(app, "*") as http:
        response = await http.get("/metrics")
        assert (response.status_code, response.headers["content-type"]) == (
            200,
            "text/plain; version=0.0.4; charset=utf-8",
        )
        samples = read(response.text)
        again = read((await http.get("/metrics")).text)
    assert samples["holdfast_up",] == 1
    assert samples["holdfast_jobs", "theirs", "queued"] == 1
    assert samples["holdfast_jobs", HOSTILE.replace("\n", " "), "queued"] == 1
    assert samples["holdfast_queue_oldest_seconds", "theirs"] >= 0
    assert (samples["holdfast_dead_letters_open",], samples["holdfast_workers",]) == (1, 0)
    assert samples["holdfast_health_reason", "dead_letters"] == 1
    assert {key[1] for key in samples if key[0] == "holdfast_health_reason"} == set(CODES)
    assert samples["holdfast_jobs_finished_total", "fine", "succeeded"] == 1
    assert samples["holdfast_jobs_finished_total", "fails", "failed"] == 1
    assert samples["holdfast_jobs_enqueued_total", "fine"] == 3
    assert samples["holdfast_job_run_seconds_count", "fine"] == 1
    assert samples["holdfast_job_wait_seconds_count", "default"] == 2
    assert again["holdfast_http_request_seconds_count", "GET", "/metrics", "200"] == 1  # the first request
    assert again["holdfast_statistics_seconds",] == samples["holdfast_statistics_seconds",], (
        "the statistics were queried twice"
    )

    async with client_for(app, "acme") as http:
        text = (await http.get("/metrics")).text
        theirs = read(text)
    assert [key[1] for key in theirs if key[0] == "holdfast_jobs"] == ["theirs"] * 4
    assert theirs["holdfast_dead_letters_open",] == 0
    assert "fails" not in text  # work of this process for other tenants
    async with client_for(app, "*", "executor") as http:
        refused = await http.get("/metrics")
    assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")
    await app.aclose()


@pytest.mark.slow
async def test_metrics_report_a_missing_database_and_a_missing_extra(
    process: prometheus.ProcessMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("postgresql://user@127.0.0.1:1/none", name="tests", answer_within=1)
    async with client_for(app, "*") as http:
        assert read((await http.get("/metrics")).text)["holdfast_up",] == 0
        for name in [each for each in sys.modules if each.startswith(("prometheus_client", "holdfast.telemetry.prom"))]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        missing = await http.get("/metrics")
    assert (missing.status_code, missing.json()["code"]) == (501, "missing_extra")
    assert missing.json()["fix"] == "pip install 'holdfast[prometheus]'"
    await app.aclose()


def test_label_values_are_bounded(app: App, process: prometheus.ProcessMetrics) -> None:
    app.enqueue_many([app.prepare(f"kind-{number}") for number in range(150)])
    samples = [
        key for key in read(generate_latest(process.registry).decode()) if key[0] == "holdfast_jobs_enqueued_total"
    ]
    assert len(samples) == prometheus.MOST + 1
    assert ("holdfast_jobs_enqueued_total", "other") in samples
    assert prometheus.Bounded()("a\u202eb\n") == "ab "


def served(text: str) -> set[str]:
    return {name for family in text_string_to_metric_families(text) for name in {s.name for s in family.samples}}


async def test_deploy_uses_only_served_metrics(sqlite_url: str, process: prometheus.ProcessMetrics) -> None:
    app = App(sqlite_url, name="tests")

    @app.job()
    async def fine() -> None: ...

    await fine.aenqueue()
    await app.atick(1)
    await app.aenqueue("other")
    async with client_for(app, "*") as http:
        await http.get("/metrics")
        names = served((await http.get("/metrics")).text)
    await app.aclose()
    dashboard: dict[str, Any] = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    keda = (ROOT / "deploy/kubernetes/scaledobject.yaml").read_text()
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    expressions = [line for line in alerts.splitlines() if " expr: " in line]
    assert len(expressions) == 16
    for text in (*queries, *expressions, keda):
        for name in re.findall(r"\bholdfast_[a-z_]+", text):
            assert name in names, f"{name} in {text}"
    for codes in re.findall(r'code=~?"([a-z_|]+)"', alerts):
        assert set(codes.split("|")) <= set(CODES)
    runbooks = (ROOT / "docs/runbooks.md").read_text()
    sections = re.findall(r"^## ([a-z_]+)$", runbooks, re.MULTILINE)
    linked = re.findall(r"runbook_url: docs/runbooks\.md#([a-z_]+)", alerts)
    assert set(linked) == set(sections)
    assert len(sections) == 15


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_worker_serves_its_metrics_on_loopback(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import holdfast\napp = holdfast.App()\n@app.job()\ndef add(a: int) -> int:\n    return a + 1\n"
    )
    app = App(sqlite_url, name="tests")
    handle = app.enqueue("add", {"a": 1})
    arguments = ["worker", "shop:app", "--metrics-port", "0", "--log-format", "json"]
    with started(arguments, cwd=tmp_path, url=sqlite_url) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        where = next(json.loads(line)["message"] for line in lines if "metrics of this process" in line).split()[-1]
        assert where.startswith("http://127.0.0.1:")
        assert handle.result(timeout=30) == 2
        line: dict[str, Any] = next(
            json.loads(text) for text in lines if text.startswith("{") and json.loads(text).get("job") == handle.id
        )

        def scraped() -> dict[tuple[str, ...], float]:
            with urllib.request.urlopen(where) as response:
                return read(response.read().decode())

        until(lambda: ("holdfast_jobs_finished_total", "add", "succeeded") in scraped(), "the job was counted")
        assert scraped()["holdfast_jobs_running",] == 0
    assert (line["kind"], line["outcome"]) == ("add", "succeeded")
    assert line["message"].startswith(f"Job {handle.id} (add) succeeded in ")
    assert line["message"].endswith(" ms (attempt 1)")
    app.close()


def test_claims_with_odd_times_are_counted(process: prometheus.ProcessMetrics, app: App) -> None:
    @app.job()
    def fine(ctx: SyncContext) -> None:
        claims.append(ctx._run.claim)

    claims: list[Claim] = []
    fine.enqueue()
    work_off(app)
    later = claims[0]
    later.created_at = later.created_at.replace(year=later.created_at.year + 1)
    running = process.run(later)
    running.over(later, None, -1.0)
    samples = read(generate_latest(process.registry).decode())
    assert samples["holdfast_jobs_finished_total", "fine", "stopped"] == 1
    assert samples["holdfast_job_wait_seconds_count", "default"] == 2


@pytest.mark.req("ARCH")
@pytest.mark.slow
def test_service_starts_without_the_extra() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None; from holdfast.server.app import make_service; print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_every_documented_health_code_is_exported() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "health.md").read_text("utf-8")
    documented = re.findall(r"^\| `(\w+)` \| (?:warn|critical|advice)", page, re.MULTILINE)
    assert sorted(documented) == sorted(CODES)
