"""`holdfast endpoints` and `holdfast notifiers`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Holdfast, document, error_of

pytestmark = pytest.mark.req("HF-20")


def test_endpoints_are_set_shown_listed_and_removed(holdfast: Holdfast) -> None:
    assert "No endpoints" in holdfast("endpoints", "list").stderr
    settings = ("--provider", "github", "--secret", "NEW", "--secret", "OLD", "--kind", "deploy", "--tolerance", "1m")
    made = document(holdfast("endpoints", "set", "gh", *settings, "--json"))
    assert (made["secrets"], made["kind"], made["tolerance"]) == (["NEW", "OLD"], "deploy", 60.0)
    assert document(holdfast("endpoints", "list", "--json")) == [made]
    changed = holdfast("endpoints", "set", "gh", "--kind", "none", "--event", "gh.*", "--disabled").stdout
    assert all(text in changed for text in ("event gh.*", "disabled", "POST /hooks/gh"))
    for wrong, code in (
        (["--secret", "hunter2"], "invalid_webhook"),
        (["--kind", "deploy"], "invalid_endpoint"),
        (["--tolerance", "2h"], "invalid_endpoint"),
    ):
        result = holdfast("endpoints", "set", "gh", *wrong, "--json")
        assert (result.exit_code, error_of(result)["code"]) == (2, code), wrong
    assert document(holdfast("endpoints", "remove", "gh", "--json")) == {"name": "gh", "removed": True}
    assert holdfast("endpoints", "show", "gh").exit_code == 3


def test_notifiers_are_set_tested_shown_listed_and_removed(holdfast: Holdfast) -> None:
    assert "No notifiers" in holdfast("notifiers", "list").stderr
    mail = ("--channel", "email", "--secret", "MAIL", "--from", "jobs@example.com", "--to", "ada@example.com")
    made = document(holdfast("notifiers", "set", "night", *mail, "--on", "health", "--json"))
    assert (made["recipients"], made["wants"]) == (["ada@example.com"], ["health"])
    slack = ("--channel", "slack", "--secret", "OPS_SLACK", "--escalate-after", "30m", "--escalation", "night")
    shown = holdfast("notifiers", "set", "ops", *slack, "--quiet", "22:00-07:00 Europe/Paris").stdout
    assert all(text in shown for text in ("to night after 30 m", "22:00-07:00 Europe/Paris", "OPS_SLACK"))
    assert "night" in holdfast("notifiers", "list").stdout
    assert len(document(holdfast("notifiers", "test", "ops", "--json"))["job_id"]) == 36
    for wrong, code in (
        (["--quiet", "22-7"], "invalid_notifier"),
        (["--on", "everything"], "invalid_notifier"),
        (["--escalation", "nobody"], "notifier_not_found"),
        (["--secret", "https://hooks.slack.com/services/x"], "invalid_webhook"),
    ):
        result = holdfast("notifiers", "set", "ops", *wrong, "--json")
        assert (result.exit_code in (2, 3), error_of(result)["code"]) == (True, code), wrong
    assert document(holdfast("notifiers", "remove", "ops", "--json")) == {"name": "ops", "removed": True}
    assert holdfast("notifiers", "show", "ops").exit_code == 3
