"""A transaction that only reads is bound to its tenant once, and anew as soon as that may have changed."""

from __future__ import annotations

import pytest

from holdfast.stores.flow import Binding, Statement

pytestmark = pytest.mark.req("JF-2", "ARCH")


def bound(tenant: str) -> Statement:
    return Statement("select enter(%s)", (tenant,), binds=True)


READ, CALL = Statement("select 1", reads=True), Statement("select * from act_under(%s)", ("x",))


def test_only_the_same_once_more_is_spared() -> None:
    binding = Binding()
    asked = [bound("a"), READ, bound("a"), READ, bound("b"), READ, bound("b"), bound("a"), CALL, bound("a"), READ]
    spared = [binding.spares(each) for each in asked]
    assert spared == [False, False, True, False, False, False, True, False, False, False, False]
    assert not Binding().spares(bound("a")), "each transaction begins without any"
