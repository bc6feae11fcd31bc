"""`enqueued` and its assertions: matching by kind, arguments and options, and messages that show the actual jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from holdfast.errors import InvalidArguments, InvalidSetting
from holdfast.testing import Kit
from tests.kit import shop

pytestmark = pytest.mark.req("HF-7")

MARCH = datetime(2027, 3, 1, tzinfo=UTC)


@pytest.fixture
def jobs(kit: Kit) -> Kit:
    """Receipts 1 to 3, and a bill."""
    for order in (1, 2, 3):
        shop.send_receipt.enqueue(f"{order}@example.com", order)
    shop.bill.using(
        queue="slow", priority=5, run_at=MARCH, tags=["a", "b"], key="bill-7", deadline=MARCH + timedelta(days=1)
    ).enqueue(shop.Invoice(7, MARCH), tags=["x"], queue="an argument")
    return kit


def test_enqueued_lists_jobs_oldest_first(jobs: Kit) -> None:
    assert [job.kind for job in jobs.enqueued()] == ["send_receipt"] * 3 + ["bill"]
    assert [job.payload["order"] for job in jobs.enqueued(shop.send_receipt)] == [1, 2, 3]
    assert len(jobs.enqueued("send_receipt")) == 3


@pytest.mark.parametrize(
    "match",
    [
        {"order": 2},
        {"order": 2, "to": "2@example.com"},
        {"order": ANY, "to": "2@example.com"},
        {"payload": {"order": 2}},
        {"to": "2@example.com", "payload": {"order": pytest.approx(2.0)}},
    ],
)
def test_jobs_match_by_the_named_arguments(jobs: Kit, match: dict[str, Any]) -> None:
    (job,) = jobs.assert_enqueued(shop.send_receipt, times=1, **match)
    assert job.payload["order"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "match",
    [
        {"queue": "slow"},
        {"priority": 5},
        {"run_at": MARCH + timedelta(seconds=2)},
        {"tags": ["b"]},
        {"tags": "a"},
        {"key": "bill-7"},
        {"deadline": MARCH + timedelta(days=1)},
        {"tenant": "default", "state": "queued", "enqueued_by": "tester"},
        {"parent": None, "correlation_id": None, "workflow_id": None, "agent": None, "external_ref": None},
        {"invoice": shop.Invoice(7, MARCH)},
        {"invoice": {"number": 7, "at": "2027-03-01T00:00:00Z"}},
        {"payload": {"queue": "an argument", "tags": ["x"]}, "queue": "slow"},
    ],
)
def test_jobs_match_by_options_and_typed_values(jobs: Kit, match: dict[str, Any]) -> None:
    jobs.assert_enqueued(shop.bill, times=1, **match)


@pytest.mark.parametrize(
    "match",
    [
        {"queue": "mail"},
        {"priority": 0},
        {"run_at": MARCH + timedelta(minutes=1)},
        {"run_at": None},
        {"delay": 0},
        {"tags": ["a", "c"]},
        {"key": None},
        {"deadline": None},
        {"state": "succeeded"},
        {"parent": "01a1df98-f17f-7363-9510-026d0c8abae3"},
        {"invoice": shop.Invoice(8, MARCH)},
        {"invoice": 3},
        {"payload": {"queue": "slow"}},
    ],
)
def test_different_values_do_not_match(jobs: Kit, match: dict[str, Any]) -> None:
    assert jobs.enqueued(shop.bill, **match) == []
    jobs.assert_not_enqueued(shop.bill, **match)
    with pytest.raises(AssertionError, match="no bill with"):
        jobs.assert_enqueued(shop.bill, **match)


def test_jobs_match_by_delay_and_parent(kit: Kit) -> None:
    order = shop.place_order.enqueue(7)
    kit.drain()
    kit.assert_enqueued(shop.remind, delay="1d", parent=order, tags="later", key="order-7", times=1)
    kit.assert_enqueued(shop.send_receipt, delay=0, state="succeeded")
    kit.assert_not_enqueued(shop.remind, delay="2d")


def test_jobs_of_every_tenant_are_included(kit: Kit) -> None:
    shop.send_receipt.using(tenant="acme").enqueue("ada@example.com", 1)
    kit.assert_enqueued(shop.send_receipt, tenant="acme")
    assert kit.drain().attempts == 1


def test_message_shows_the_enqueued_jobs_and_differences(jobs: Kit) -> None:
    with pytest.raises(AssertionError) as missing:
        jobs.assert_enqueued(shop.send_receipt, to="1@example.com", order=2, queue="default")
    assert str(missing.value) == (
        "no send_receipt with to='1@example.com', order=2, queue='default' was enqueued; enqueued jobs:\n"
        "  send_receipt(to='1@example.com', order=1) queue=mail: queued\n"
        "      order is 1, not 2\n"
        "      queue is 'mail', not 'default'\n"
        "  send_receipt(to='2@example.com', order=2) queue=mail: queued\n"
        "      to is '2@example.com', not '1@example.com'\n"
        "      queue is 'mail', not 'default'\n"
        "  send_receipt(to='3@example.com', order=3) queue=mail: queued\n"
        "      to is '3@example.com', not '1@example.com'\n"
        "      order is 3, not 2\n"
        "      queue is 'mail', not 'default'\n"
        + next(line for line in str(missing.value).splitlines() if line.startswith("  bill("))
    )
    assert "key=bill-7: queued" in str(missing.value)


def test_message_for_too_many_jobs(jobs: Kit) -> None:
    with pytest.raises(AssertionError, match=r"^send_receipt was enqueued 3 times, not 2; enqueued jobs:"):
        jobs.assert_enqueued(shop.send_receipt, times=2)
    with pytest.raises(AssertionError) as unwanted:
        jobs.assert_not_enqueued(shop.send_receipt, order=3)
    assert str(unwanted.value) == (
        "send_receipt with order=3 was enqueued; enqueued jobs:\n"
        "  send_receipt(to='3@example.com', order=3) queue=mail: queued"
    )


def test_message_for_no_jobs(kit: Kit) -> None:
    kit.assert_not_enqueued()
    kit.assert_enqueued(shop.bill, times=0)
    with pytest.raises(AssertionError, match=r"^no job was enqueued; there are no jobs$"):
        kit.assert_enqueued()


def test_long_values_are_cut_in_messages(kit: Kit) -> None:
    shop.send_receipt.enqueue("x" * 5_000, 1)
    with pytest.raises(AssertionError) as missing:
        kit.assert_enqueued(shop.send_receipt, to="y")
    assert len(str(missing.value)) < 1_000


def test_payload_match_must_be_a_mapping(kit: Kit) -> None:
    with pytest.raises(InvalidSetting, match="mapping") as refused:
        kit.enqueued(payload=[1])
    assert refused.value.code == "invalid_match"


def test_all_pages_of_jobs_are_read(kit: Kit) -> None:
    shop.app.enqueue_many(shop.send_receipt.prepare("ada@example.com", order) for order in range(1_100))
    assert [job.payload["order"] for job in kit.enqueued()] == list(range(1_100))
    kit.assert_enqueued(times=1_100)


@pytest.mark.req("DP-22")
def test_an_argument_that_the_kind_does_not_have_is_refused(kit: Kit) -> None:
    for method in (kit.assert_not_enqueued, kit.assert_enqueued, kit.enqueued):
        for kind in (shop.send_receipt, "send_receipt"):
            with pytest.raises(InvalidArguments) as refused:
                method(kind, ordr=3)
            assert refused.value.message == "send_receipt has no argument 'ordr'; did you mean 'order'?"
    with pytest.raises(InvalidArguments):
        kit.assert_not_enqueued(shop.send_receipt, payload={"qeue": 1})
    kit.assert_not_enqueued("of another program", anything=3)
    kit.assert_not_enqueued(anything=3)
