"""`holdfast workflows`, and how the job commands show workflows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.features.assembly import Store
from holdfast.features.workflows.model import CallbackSpec
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.stores import FINAL, spec
from tests.support.workflows import Flow

pytestmark = pytest.mark.req("DP-14", "DP-22")

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"


def test_workflow_is_listed_shown_resumed_and_cancelled(holdfast: Holdfast, store: Store) -> None:
    assert "No matching workflows." in holdfast("workflows", "list").stderr
    flow = Flow(store, {"[red]a[/red]": "", "b": "[red]a[/red]", "c": ["b"]}, edges={"b>c": "continue"})
    flow.spec = replace(flow.spec, callbacks=(CallbackSpec(spec("tell"), "failure", flow.ids["[red]a[/red]"]),))
    flow.start()
    (header, row) = [each.split() for each in holdfast("workflows", "list").stdout.splitlines()]
    assert header == ["id", "kind", "status", "jobs", "left", "failed", "age"]
    assert row[:6] == [flow.id, "publish", "active", "3", "3", "0"]
    shown = holdfast("jobs", "show", flow.ids["b"]).stdout
    assert "waits for [red]a[/red] (queued)" in shown
    assert flow.id in shown
    assert "waits for jobs of its workflow" in holdfast("jobs", "list").stdout
    flow.run("[red]a[/red]", outcome=FINAL)
    lines = [" ".join(each.split()) for each in holdfast("workflows", "show", flow.id).stdout.splitlines()]
    assert lines[0] == f"publish {flow.id}"
    for fact in ("status active", "jobs 3: 1 open, 1 dead, 1 skipped", "on failure skip", "generator planner"):
        assert fact in lines
    assert "callback on failure of [red]a[/red]: due" in lines
    assert f"b {flow.ids['b']} skipped 0 behind [red]a[/red]" in lines
    assert f"[red]a[/red] {flow.ids['[red]a[/red]']} dead_letter 1 broken: it broke for good" in lines
    drawn = [" ".join(each.split()) for each in holdfast("workflows", "graph", flow.id).stdout.splitlines()]
    assert drawn == ["[red]a[/red] dead_letter", "b skipped <- [red]a[/red]", "c queued <- b [continue]"]
    found = document(holdfast("workflows", "graph", flow.id, "--json"))
    assert (found["workflow"]["status"], len(found["jobs"]), len(found["edges"])) == ("active", 3, 2)
    assert holdfast("workflows", "resume", flow.id, "--reason", "mended").stdout == "1 jobs redriven\n"
    again = holdfast("workflows", "resume", flow.id, "--json")
    assert (again.exit_code, error_of(again)["code"]) == (4, "nothing_to_resume")
    cancelled = document(holdfast("workflows", "cancel", flow.id, "--json"))
    assert (cancelled["jobs"], cancelled["refused"]) == (3, False)
    twice = holdfast("workflows", "cancel", flow.id)
    assert (twice.exit_code, "already_finished" in twice.stderr) == (4, True)
    listed = document(holdfast("workflows", "list", "--over", "--json"))
    assert [(each["id"], each["status"]) for each in listed] == [(flow.id, "cancelled")]
    assert document(holdfast("workflows", "list", "--active", "--json")) == []


def test_unknown_workflow_is_not_found_and_held_job_cannot_be_rescheduled(holdfast: Holdfast, store: Store) -> None:
    for operation in ("show", "graph", "cancel", "resume"):
        result = holdfast("workflows", operation, UNKNOWN, "--json")
        assert (result.exit_code, error_of(result)["code"]) == (3, "workflow_not_found")
    first, second = (Flow(store, {"a": "", "b": "a"}) for _ in range(2))
    first.start()
    second.start()
    held = holdfast("jobs", "reschedule", first.ids["b"])
    assert (held.exit_code, "it is held back" in held.stdout) == (4, True)
    page = holdfast("workflows", "list", "--limit", "1", "--json")
    assert [each["id"] for each in document(page)] == [second.id]
    rest = document(holdfast("workflows", "list", "--limit", "1", "--after", second.id, "--json"))
    assert [each["id"] for each in rest] == [first.id]


def test_graph_of_a_wide_fan_in_counts_its_jobs(holdfast: Holdfast, store: Store) -> None:
    names = [f"part {number}" for number in range(20)]
    flow = Flow(store, {**dict.fromkeys(names, ""), "total": names}).start()
    (drawn,) = [each for each in holdfast("workflows", "graph", flow.id).stdout.splitlines() if "total" in each]
    assert " ".join(drawn.split()) == "total queued <- part 0, part 1, … 17 more …, part 19"
