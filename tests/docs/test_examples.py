"""The examples run on both stores and print what they are meant to show."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest
from starlette.testclient import TestClient

pytestmark = pytest.mark.req("HF-5", "DP-5", "CX-9", "JF-6")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples read HOLDFAST_URL when they are imported, and one sets it."""
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///unused.db")
    monkeypatch.delenv("HOLDFAST_URL")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_receipts(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    url = request.getfixturevalue(f"{store}_url")
    example = load("receipts")
    assert await example.main(url) == {"succeeded": 20, "dead_letter": 1}
    output = capsys.readouterr().out
    assert "refused: idempotency_conflict" in output
    assert "order 5: sent in attempt 3" in output
    assert output.count("job.retry") == 2
    assert "20 receipts sent" in output


@pytest.mark.req("DP-13", "SC-6", "HF-2")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_warehouse(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    url = request.getfixturevalue(f"{store}_url")
    assert await load("warehouse").main(url) == {"pack": 2, "label": 3}
    output = capsys.readouterr().out
    assert "order 9: 1 worker is running, and none serves queue moon (they serve default)" in output
    assert "label, attempt 2: failed the printer is jammed (1 to go)" in output
    assert "label, attempt 3: succeeded" in output
    assert "pack paid orders: 1 jobs created" in output


@pytest.mark.req("DP-4", "DP-21")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_patients(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    seen = await load("patients").main(request.getfixturevalue(f"{store}_url"), tmp_path)
    assert seen[0].startswith("refused: the payload of import_file has a forbidden key at $.options.password")
    assert seen[1] == "3 rows from s3://in/march.csv to db://patients"
    assert seen[2].endswith("what is said of a restricted job's failure is not kept; its payload: [restricted]")
    assert seen[3] == "2000 lines, at artifact://default/…"


@pytest.mark.req("DP-15")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_dead_letters(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    url = request.getfixturevalue(f"{store}_url")
    assert await load("dead_letters").main(url) == {"succeeded": 20, "cancelled": 1}
    output = capsys.readouterr().out
    assert "19 x ConnectionError in example_dead_letters:main.pay, last: order " in output
    assert "redrive: 19 of 19, 0 refused" in output
    assert "0 groups are open" in output


@pytest.mark.req("SC-16", "SC-10")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_gpu(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    most = await load("gpu").main(request.getfixturevalue(f"{store}_url"))
    assert {name: count for name, count in most.items() if count > (2 if name.startswith("gpu") else 1)} == {}
    output = capsys.readouterr().out
    assert "16 scenes rendered" in output
    assert "resource gpu-1 was reserved" in output


@pytest.mark.req("JF-12", "JF-1")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_tenants(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    made = await load("tenants").main(request.getfixturevalue(f"{store}_url"))
    assert len(made) == 60 + 6 + 3
    assert set(made[-40:]) == {"huge"}, "its backlog did not delay the others"
    assert "tenant trial has 3 waiting jobs and may have 3" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.req("SC-14", "CX-10")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_pictures(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    store: str,
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", request.getfixturevalue(f"{store}_url"))
    monkeypatch.setenv("PICTURES_SCRATCH", str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))  # a child process imports it by name
    example = load("pictures")
    for kind in ("caption", "enlarge", "decode"):
        getattr(example, kind).function.__module__ = "pictures"
    assert await example.main() == {
        "1 caption": "succeeded",
        "2 caption": "timeout",
        "3 enlarge": "succeeded",
        "4 enlarge": "memory_limit",
        "5 decode": "process_died",
        "6 report": "succeeded",
    }
    assert "report.txt: 25 bytes" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.req("JF-7")
def test_pictures_as_a_script(tmp_path: Path) -> None:
    """Its handlers are in `__main__`, which every child imports again."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    script = str(EXAMPLES / "pictures.py")
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split()[1:3] for line in done.stdout.splitlines()[1:7]]
    assert [state for _, state in lines] == [
        "succeeded",
        "dead_letter",
        "succeeded",
        "dead_letter",
        "dead_letter",
        "succeeded",
    ]
    assert "killed by signal 6 (SIGABRT)" in done.stdout


@pytest.mark.req("HF-3")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_orders(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    example = load("orders")
    assert example.main(request.getfixturevalue(f"{store}_url")) == {"orders": 1, "receipts": 1, "jobs": 1}
    assert "receipt for order 7: 2 attempts" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.req("HF-6", "CX-5", "CX-7", "CX-8", "CX-15")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_agent(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path, store: str) -> None:
    example = load("agent")
    outcome = example.main(request.getfixturevalue(f"{store}_url"), tmp_path)
    assert outcome.result == {
        "approved_by": "ada",
        "receipts": ["flour for 12", "cherries for 35 (had been sold already)"],
        "delivered_to": "the back door",
    }
    # The step killed between the sale and its record ran again; no earlier step did.
    assert (outcome.plans, outcome.calls, outcome.crashes) == (1, 3, 1)
    assert [line.partition(":")[0] for line in outcome.sold] == ["flour for 12", "cherries for 35"]
    assert "nothing was bought twice" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.req("CX-8", "CX-15")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_import_rows(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path, store: str
) -> None:
    example = load("import_rows")
    outcome = example.main(request.getfixturevalue(f"{store}_url"), tmp_path)
    assert outcome.result == {"good_row": 4_940, "bad_row": 60}
    assert (outcome.starts, outcome.written) == ([0, 2_250], 5_250)
    assert "The other worker continued after row 2,250." in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.req("JF-14")
def test_over_http(new_sqlite_url: str) -> None:
    assert load("over_http").main(new_sqlite_url) == [
        "enqueued twice, one job: True",
        "order 7: 20 refunded",
        "Refund 500 for order 8? approved",
        "ada may not enqueue: missing_scope",
        "order 8: 500 refunded",
        "enqueue by site",
        "approve by ada",
    ]


@pytest.mark.slow
@pytest.mark.req("JF-16")
def test_dev_shop(new_sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs alone; tests/cli/test_serve.py runs it with `holdfast dev`."""
    monkeypatch.setenv("HOLDFAST_URL", new_sqlite_url)
    shop = load("dev_shop")
    with closing(shop.app):
        receipt, label = shop.send_receipt.enqueue(7), shop.draw_label.enqueue(7)
        large, refused = shop.charge.enqueue(7, 499.5), shop.charge.enqueue(8, 5.0)
        monkeypatch.setattr(shop.random, "random", lambda: 0.9)  # the bank is reachable
        shop.app.run_worker(burst=True)
        assert (receipt.result(), label.result()) == ("sent for order 7", "label-7.png")
        assert [approval.summary for approval in shop.app.approvals.list()] == ["Charge 499.50 for order 7?"]
        assert (large.state(), shop.app.jobs.get(refused.id).error_code) == ("waiting_for_approval", "card_refused")


@pytest.mark.slow
@pytest.mark.req("HF-9")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_support_agent(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    figures = load("support_agent").main(request.getfixturevalue(f"{store}_url"), tmp_path)
    assert (figures["refunds made"], figures["crashes"]) == (["refund 4711 75"], 1)
    assert figures["model requests made"] == figures["model requests recorded"] == 3


def test_every_example_has_a_test() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f'load("{path.stem}")' in here, f"{path.name} is not run by any test"


@pytest.mark.slow
@pytest.mark.req("SC-8", "SC-9")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_schedules(request: pytest.FixtureRequest, store: str) -> None:
    """A day passes: the report at nine in Paris, stock every six hours, one newsletter from the newest version."""
    output = load("schedules").main(request.getfixturevalue("postgres_url") if store == "postgres" else None)
    assert "08:00 report: succeeded" in output
    assert sum("take_stock: succeeded" in line for line in output) == 3
    assert "11:00 spring: succeeded" in output
    assert output[-2:] == ["Mon 29 Mar 09:00 CEST", "Tue 30 Mar 09:00 CEST"]


@pytest.mark.req("DP-14", "SC-17")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_magazine(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    example = load("magazine")
    statuses = await example.main(request.getfixturevalue(f"{store}_url"))
    assert set(statuses.values()) == {"succeeded"}
    output = capsys.readouterr().out
    assert "the issue is partially_failed, its pages are partially_failed" in output
    assert "skipped: book, print, post" in output
    assert "500 × January: page 0, page 1, page 2, page 3, page 4" in output


@pytest.mark.req("DP-16", "HK-5")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_letters(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    assert load("letters").main(request.getfixturevalue(f"{store}_url")) == {"invoice": 0.0, "letter": 1.742}
    output = capsys.readouterr().out
    assert "clean of *: 2 due" in output
    assert "letter: cleaned, payload {}; enqueue take succeed clean" in output
    assert "invoice: succeeded, payload {'number': 7}" in output


@pytest.mark.req("DP-18", "DP-19")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_outage(request: pytest.FixtureRequest, store: str) -> None:
    assert await load("outage").main(request.getfixturevalue(f"{store}_url")) == [
        "the sum is 5",
        "the letter is queued: the mail server is down",
        "health: warn, ['paused']",
        "refused: paused",
        "sent to bob",
    ]


@pytest.mark.req("HF-4", "CX-4")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_audit(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], store: str) -> None:
    output = await load("audit").main(request.getfixturevalue(f"{store}_url"))
    assert output[0] == "event 9 was sealed and is missing, and no purge recorded it"
    assert re.fullmatch(r"job \S+ is succeeded, but its events end with in_progress", output[1])
    assert len(output) == 2
    result = capsys.readouterr().out
    assert "10 events and actions in 1 seal: intact" in result
    assert "add limit kind transfer: {'concurrency': 2}" in result


@pytest.mark.slow
@pytest.mark.req("JF-9", "SC-15")
async def test_webhooks(
    new_sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_OPS_HOOK", "")  # restored after the example has set it
    result = await load("webhooks").main(new_sqlite_url)
    assert sorted(result[:3]) == ["job.dead_letter", "order.paid", "ping"]
    assert result[3].endswith(" (duplicate)")
    assert capsys.readouterr().out.count("attempt 1: 204") == 4


@pytest.mark.slow
@pytest.mark.req("JF-8", "JF-10", "JF-11")
async def test_rates(new_sqlite_url: str, tmp_path: Path) -> None:
    output = await load("rates").main(new_sqlite_url, tmp_path)
    assert output[0] == "succeeded: {'eur': 1, 'usd': 1.16, '=cmd()': 0}"
    assert [line.partition(":")[0] for line in output[1:3]] == ["dead_letter", "dead_letter"]
    assert output[-1] == '"eur","\'=cmd()",0'


@pytest.mark.req("JF-13")
async def test_traced(new_sqlite_url: str) -> None:
    root, jobs = logging.getLogger(), logging.getLogger("holdfast.jobs")
    before, level = root.level, jobs.level
    try:
        result = await load("traced").main(new_sqlite_url)
    finally:
        root.handlers[:] = [each for each in root.handlers if each.get_name() != "holdfast"]
        root.setLevel(before)
        jobs.setLevel(level)
    assert result[0] == "4bf92f35 order: taking order 7, card password=[redacted]"
    assert result[2] == (
        "4bf92f35 ship: calling the shipper with 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    )
    assert all(" succeeded in " in line for line in (result[1], result[3]))


@pytest.mark.req("HF-13")
def test_hooks(sqlite_url: str) -> None:
    assert load("hooks").main(sqlite_url) == [
        "charging 100 for request r-17",
        "charge, attempt 1: done",
        "charge failed permanently: the bank is closed",
    ]


@pytest.mark.req("HF-8")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_fastapi_shop(request: pytest.FixtureRequest, store: str) -> None:
    assert load("fastapi_shop").main(request.getfixturevalue(f"{store}_url")) == {"state": "succeeded", "jobs": 1}


@pytest.mark.req("HF-8")
def test_fastapi_shop_answers_404_for_an_unknown_job(sqlite_url: str) -> None:
    with TestClient(load("fastapi_shop").make_site(sqlite_url)) as client:
        for wrong in ("01a1de74-eb8c-70f1-843b-cac5f6817387", "7"):
            assert client.get(f"/jobs-of-the-shop/{wrong}").status_code == 404


@pytest.mark.req("HF-8")
def test_flask_shop(sqlite_url: str) -> None:
    assert load("flask_shop").main(sqlite_url) == "receipt for order 1 sent to ada@example.com"


@pytest.mark.req("HF-8")
def test_litestar_shop(sqlite_url: str) -> None:
    assert load("litestar_shop").main(sqlite_url) == "Hello, Ada!"
