"""Handlers in child processes under a kit: the child imports the app again and uses the kit's database."""

from __future__ import annotations

import os
import sys

import pytest

from holdfast.errors import JobFailed
from holdfast.testing import JobsFailed, JobWaits, Kit
from tests.kit import shop

pytestmark = [
    pytest.mark.req("HF-7", "JF-7"),
    pytest.mark.skipif(sys.platform == "win32", reason="child processes need POSIX"),
]


@pytest.mark.slow
def test_child_uses_the_kit_database(kit: Kit) -> None:
    result = kit.run(shop.in_child, 7)
    assert result["pid"] != os.getpid()
    assert result["url"] == kit.url
    (receipt,) = kit.assert_enqueued(shop.send_receipt, to="eve@example.com", order=7)
    assert receipt.id == result["receipt"]
    assert kit.drain().states == {"succeeded": 1}


@pytest.mark.slow
def test_child_uses_the_kit_database_for_a_plain_function(kit: Kit) -> None:
    assert kit.run(shop.plainly, 8) == kit.assert_enqueued(shop.send_receipt, to="plain@example.com")[0].id


@pytest.mark.slow
def test_drain_starts_child_processes(kit: Kit) -> None:
    shop.in_child.enqueue(1)
    shop.in_child.enqueue(2)
    assert kit.drain().states == {"succeeded": 4}


@pytest.mark.slow
def test_error_of_a_child_is_reported_as_text(kit: Kit) -> None:
    with pytest.raises(JobFailed, match=r"CardDeclined: order 7 was declined") as failed:
        kit.run(shop.fails_in_child, "raise")
    assert "shop.py" in failed.value.__notes__[0]
    with pytest.raises(JobWaits, match="not yet"):
        kit.run(shop.fails_in_child, "snooze")
    shop.fails_in_child.enqueue("raise")
    with pytest.raises(JobsFailed, match=r"(?s)CardDeclined.*in fails_in_child") as drained:
        kit.drain()
    assert drained.value.__cause__ is None
