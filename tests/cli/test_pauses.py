"""`holdfast pause`, `holdfast resume` and `holdfast pauses`."""

from __future__ import annotations

import pytest

from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.stores import claim, open_lease, put_one


@pytest.mark.req("DP-18")
def test_queue_is_paused_and_resumed(holdfast: Holdfast, store: Store) -> None:
    assert "No pauses." in holdfast("pauses").stderr
    result = holdfast("pause", "--queue", "default", "--reason", "SMTP is [b]down[/b]", "--until", "2h")
    assert result.exit_code == 0
    assert "queue default is paused" in result.stdout
    assert "new jobs  wait" in result.stdout
    job_id = put_one(store)
    lease = open_lease(store)
    assert claim(store, lease) == []
    assert "SMTP is [b]down[/b]" in holdfast("pauses").stdout
    reason = document(holdfast("why", job_id, "--json"))["reasons"][0]
    assert (reason["code"], reason["change"]) == (
        "paused",
        "It continues by itself then. To continue now: holdfast resume --queue default",
    )
    assert holdfast("resume", "--queue", "default").exit_code == 0
    gone = holdfast("resume", "--queue", "default", "--json")
    assert (gone.exit_code, error_of(gone)["code"]) == (3, "not_paused")
    made = document(holdfast("pause", "--all", "--reason", "moving", "--until", "2100-01-01T00:00Z", "--json"))
    assert (made["tenant"], made["scope"], made["refuse_enqueue"], made["until"][:4]) == ("*", "all", True, "2100")
    refused = holdfast("enqueue", "mail.send", "--json")
    assert (refused.exit_code, error_of(refused)["code"]) == (4, "paused")
    assert document(holdfast("pauses", "--json")) == [made]
    assert document(holdfast("resume", "--all", "--json")) == {"resumed": True}
    assert len(claim(store, lease)) == 1
    assert holdfast("pause", "--kind", "pay", "--tenant", "acme", "--reason", "x", "--refuse-enqueue").exit_code == 0
    assert document(holdfast("pauses", "--tenant", "acme", "--json"))[0]["tenant"] == "acme"
    assert document(holdfast("pauses", "--json")) == []
    for wrong in (
        ["--reason", "x"],
        ["--queue", "a"],
        ["--queue", "a", "--kind", "b", "--reason", "x"],
        ["--tenant", "acme", "--reason", "x"],
        ["--queue", "a", "--reason", " "],
        ["--queue", "a", "--reason", "x", "--until", "soon"],
    ):
        assert holdfast("pause", *wrong).exit_code == 2, wrong


@pytest.mark.req("DP-18", "DP-22")
def test_resume_names_the_tenant_that_a_pause_is_for(holdfast: Holdfast, store: Store) -> None:
    holdfast("pause", "--queue", "mail", "--tenant", "acme", "--reason", "x")
    error = error_of(holdfast("resume", "--queue", "mail", "--json"))
    assert (error["code"], error["message"]) == ("not_paused", "queue mail is not paused for all tenants")
    assert error["fix"] == "It is paused for tenant acme: holdfast resume --queue mail --tenant acme"
    assert holdfast("resume", "--queue", "mail", "--tenant", "acme").exit_code == 0
    holdfast("pause", "--queue", "mail", "--reason", "x")
    error = error_of(holdfast("resume", "--queue", "mail", "--tenant", "acme", "--json"))
    assert error["message"] == "queue mail of tenant acme is not paused"
    assert error["fix"] == "It is paused for all tenants: holdfast resume --queue mail"
    assert error_of(holdfast("resume", "--queue", "other", "--json"))["fix"] == "List the pauses: holdfast pauses"
