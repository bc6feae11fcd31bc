"""A read-only transaction is bound to its tenant once, and again after a statement that may change the binding."""

from __future__ import annotations

import pytest

from holdfast.stores.flow import Binding, Statement

pytestmark = pytest.mark.req("JF-2", "ARCH")


def bound(tenant: str) -> Statement:
    return Statement("select enter(%s)", (tenant,), binds=True)


READ, CALL = Statement("select 1", reads=True), Statement("select * from act_under(%s)", ("x",))


def test_binding_is_skipped_only_if_tenant_is_already_bound() -> None:
    binding = Binding()
    statements = [bound("a"), READ, bound("a"), READ, bound("b"), READ, bound("b"), bound("a"), CALL, bound("a"), READ]
    spared = [binding.is_redundant(statement) for statement in statements]
    assert spared == [False, False, True, False, False, False, True, False, False, False, False]
    assert not Binding().is_redundant(bound("a")), "each transaction starts unbound"
