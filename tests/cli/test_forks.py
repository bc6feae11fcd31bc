"""``holdfast jobs fork``: named jobs and selected ones."""

from __future__ import annotations

import re

import pytest

from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.cli.durable_jobs import begun

pytestmark = pytest.mark.req("HF-10")

UNKNOWN = "01a1de74-eb8c-70f1-843b-cac5f6817387"
PLAN = (("step", "quote"), ("step", "charge"), ("event", ("paid", None, "1d")))


def test_named_job_is_forked_and_both_name_each_other(holdfast: Holdfast, store: Store) -> None:
    job = begun(store.url, *PLAN)
    (made,) = document(
        holdfast("jobs", "fork", job, "--from-step", "charge", "--reason", "wrong account", "--fork-key", "a", "--json")
    )
    assert made == {"id": job, "fork": made["fork"], "created": True, "reason": None}
    again = holdfast("jobs", "fork", job, "--from-step", "2", "--fork-key", "a")
    assert (again.exit_code, made["fork"] in again.stdout, "forked before" in again.stdout) == (0, True, True)
    assert re.search(rf"^fork +{made['fork']}$", holdfast("jobs", "show", job).stdout, re.MULTILINE)
    assert re.search(rf"^forked from +{job}$", holdfast("jobs", "show", made["fork"]).stdout, re.MULTILINE)
    actions = document(holdfast("audit", "actions", "--json"))
    assert any(each["type"] == "fork" and each["changed"]["reason"] == "wrong account" for each in actions)


def test_selected_jobs_are_forked_once_with_a_key(holdfast: Holdfast, store: Store) -> None:
    jobs = {begun(store.url, *PLAN) for _ in range(3)}
    begun(store.url, ("event", ("paid", None, "1d")))
    arguments = (
        "jobs",
        "fork",
        "--kind",
        "plan",
        "--state",
        "retry_waiting",
        "--from-step",
        "charge",
        "--fork-key",
        "b",
    )
    made = holdfast(*arguments, "--json")
    answers = document(made)
    assert {each["id"] for each in answers if each["created"]} == jobs
    assert [each["reason"] for each in answers if not each["created"]] == ["no_such_step"]
    assert made.exit_code == 4
    repeated = document(holdfast(*arguments, "--json"))
    assert {each["id"]: each["fork"] for each in repeated} == {each["id"]: each["fork"] for each in answers}
    assert not any(each["created"] for each in repeated)
    assert "No matching jobs." in holdfast("jobs", "fork", "--kind", "none", "--from-step", "a").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        ((UNKNOWN, "--from-step", "a"), "not_found", 3),
        (("--from-step", "a"), "nothing_named", 2),
        ((UNKNOWN, "--kind", "plan", "--from-step", "a"), "conflicting_options", 2),
        ((UNKNOWN,), "usage", 2),
        ((UNKNOWN, "--from-step", ""), "invalid_name", 2),
    ],
    ids=str,
)
def test_wrong_use(holdfast: Holdfast, arguments: tuple[str, ...], code: str, exit_code: int) -> None:
    refused = holdfast("jobs", "fork", *arguments, "--json")
    assert (error_of(refused)["code"], refused.exit_code) == (code, exit_code)


def test_refusal_of_one_job_is_an_error(holdfast: Holdfast, store: Store) -> None:
    job = begun(store.url, *PLAN)
    refused = holdfast("jobs", "fork", job, "--from-step", "ship", "--json")
    assert (error_of(refused)["code"], refused.exit_code) == ("no_such_step", 3)
