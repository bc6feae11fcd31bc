"""`holdfast webhooks`."""

from __future__ import annotations

import json

import pytest

from holdfast import App, webhooks
from holdfast.outgoing import EgressPolicy
from tests.cli.conftest import Holdfast
from tests.support.http_server import running

pytestmark = pytest.mark.req("JF-9", "SC-15", "DP-22")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_webhook_is_added_tested_resent_changed_and_removed(
    holdfast: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = holdfast("webhooks", "secret").stdout.strip()
    monkeypatch.setenv("HOLDFAST_SECRET_OPS", made)
    with running() as web:
        web.says("/hook", 500, b"not now")
        done = holdfast("webhooks", "add", "ops", f"{web.url}/hook?k=7", "--secret", "OPS", "--on", "order.paid")
        assert (done.exit_code, "enabled" in done.stdout, "k=7" in done.stdout) == (0, True, False)
        assert holdfast("webhooks", "add", "ops", web.url, "--secret", "OPS").exit_code == 4
        refused = holdfast("webhooks", "add", "two", web.url, "--secret", made)
        assert (refused.exit_code, made in refused.stderr + refused.stdout) == (2, False)
        job = json.loads(holdfast("webhooks", "test", "ops", "--json").stdout)["job_id"]
        app = App(url, egress=EgressPolicy(ports=(web.port,), allow=("127.0.0.0/8",)))
        app.run_worker(burst=True, poll=0.02)
        (log,) = json.loads(holdfast("webhooks", "deliveries", "ops", "--failed", "--json").stdout)
        assert (log["job_id"], log["status"], log["error_code"]) == (job, 500, "webhook_failed")
        assert log["excerpt"] == "not now"
        web.says("/hook")
        again = holdfast("webhooks", "resend", "ops", log["message"])
        assert again.exit_code == 0
        app.run_worker(burst=True, poll=0.02)
        assert webhooks.verify(web.asked[-1].headers, web.asked[-1].body, made).id == log["message"]
        shown = holdfast("webhooks", "show", "ops")
        assert "delivered" in shown.stdout
        app.close()
    assert holdfast("webhooks", "rotate-secret", "ops", "NEW", "--json").stdout.count("NEW") == 1
    changed = json.loads(
        holdfast("webhooks", "set", "ops", "--on", "job.failed", "--kind", "pay*", "--queue", "hooks", "--json").stdout
    )
    assert changed["job_options"] == {"queue": "hooks"}
    assert (changed["wants"], changed["kind"], changed["secrets"]) == (["job.failed"], "pay*", ["NEW", "OPS"])
    assert "moved" in holdfast("webhooks", "disable", "ops", "--reason", "moved").stdout
    assert "disabled" in holdfast("webhooks", "list").stdout
    assert json.loads(holdfast("webhooks", "enable", "ops", "--skip", "--json").stdout)["enabled"]
    assert holdfast("webhooks", "remove", "ops").exit_code == 0
    assert "No webhooks" in holdfast("webhooks", "list").stderr
    assert holdfast("webhooks", "show", "ops").exit_code == 3
