"""Handlers in processes of their own, under the kit: the child imports the app anew, and is on the kit's database."""

from __future__ import annotations

import os
import sys

import pytest

from holdfast.errors import JobFailed
from holdfast.testing import JobsFailed, JobWaits, Kit
from tests.kit import shop

pytestmark = [
    pytest.mark.req("HF-7", "JF-7"),
    pytest.mark.skipif(sys.platform == "win32", reason="children are for POSIX systems"),
]


@pytest.mark.slow
def test_a_child_is_on_the_kits_database(kit: Kit) -> None:
    found = kit.run(shop.elsewhere, 7)
    assert found["pid"] != os.getpid()
    assert found["url"] == kit.url
    (receipt,) = kit.assert_enqueued(shop.send_receipt, to="eve@example.com", order=7)
    assert receipt.id == found["receipt"]
    assert kit.drain().states == {"succeeded": 1}


@pytest.mark.slow
def test_also_where_nothing_leads_from_the_function_to_its_app(kit: Kit) -> None:
    assert kit.run(shop.plainly, 8) == kit.assert_enqueued(shop.send_receipt, to="plain@example.com")[0].id


@pytest.mark.slow
def test_drains_start_children_too(kit: Kit) -> None:
    shop.elsewhere.enqueue(1)
    shop.elsewhere.enqueue(2)
    assert kit.drain().states == {"succeeded": 4}


@pytest.mark.slow
def test_what_a_child_raised_comes_as_words(kit: Kit) -> None:
    with pytest.raises(JobFailed, match=r"CardDeclined: order 7 was declined") as failed:
        kit.run(shop.fails_elsewhere, "raise")
    assert "shop.py" in failed.value.__notes__[0]
    with pytest.raises(JobWaits, match="not yet"):
        kit.run(shop.fails_elsewhere, "snooze")
    shop.fails_elsewhere.enqueue("raise")
    with pytest.raises(JobsFailed, match=r"(?s)CardDeclined.*in fails_elsewhere") as drained:
        kit.drain()
    assert drained.value.__cause__ is None
