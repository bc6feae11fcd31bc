"""`holdfast restore-check`."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.engine.job import EVERY_TENANT
from holdfast.features.assembly import Store
from tests.cli.conftest import Holdfast, document, error_of
from tests.support.stores import claim, forward, open_lease, put_one

pytestmark = pytest.mark.req("HF-14")


@pytest.mark.every_case
def test_report_and_adoption(holdfast: Holdfast, store: Store) -> None:
    put_one(store)
    (running,) = claim(store, open_lease(store), 1)
    assert store.run(store.ledger.save_cursor("billing", store.run(store.ledger.end(EVERY_TENANT)), None, "default"))
    assert holdfast("schedules", "add", "daily", "@daily", "--kind", "report").exit_code == 0
    forward(store, 2 * 86_400)
    checked = holdfast("restore-check", "--json")
    assert checked.exit_code == 0
    found = document(checked)
    assert (found["running_jobs"], found["missed"], found["epoch"]) == ([running.id], ["default/daily"], 0)
    assert found["unread"] == [{"tenant": "default", "name": "consumer billing", "events": 0}]

    adopted = holdfast("restore-check", "--adopt")
    assert adopted.exit_code == 0
    assert "Adopted: epoch 1 of the ledger." in adopted.stdout
    assert running.id in adopted.stdout
    put_one(store)
    assert document(holdfast("restore-check", "--json"))["unread"][0]["events"] == 1


def test_copy_that_was_not_adopted(bare: Holdfast, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("update holdfast.ledger_epoch set at = at")
    url = ("--url", postgres_url)
    checked = bare("restore-check", *url)
    assert checked.exit_code == 1
    assert "It refuses work until it is adopted." in checked.stdout
    assert "holdfast restore-check --adopt" in checked.stderr
    doctor = bare("doctor", *url, "--json")
    assert doctor.exit_code == 1
    assert "copied" in {finding["name"] for finding in document(doctor)["findings"] if not finding["ok"]}
    events = bare("events", *url, "--json")
    assert (events.exit_code, error_of(events)["code"]) == (4, "copy_not_adopted")
    assert bare("migrate", *url).exit_code == 0
    assert bare("restore-check", *url, "--adopt").exit_code == 0
    assert bare("restore-check", *url).exit_code == 0
