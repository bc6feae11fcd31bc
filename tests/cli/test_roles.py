"""`holdfast roles`, and the role named when a login lacks a permission."""

from __future__ import annotations

import pytest

from holdfast.features.assembly import Store
from holdfast.stores.postgres.roles import MAY, functions, missing_role
from tests.cli.conftest import Holdfast, document


@pytest.mark.req("DP-17")
def test_permission_error_names_smallest_sufficient_role() -> None:
    assert "the role holdfast_executor:" in missing_role("permission denied for function open_lease")
    assert "the role holdfast_producer:" in missing_role("permission denied for function cancel_many")
    assert "the role holdfast_viewer:" in missing_role("permission denied for function get_job")
    assert "the role holdfast_admin:" in missing_role("permission denied for function set_limit")
    assert "holdfast roles" in missing_role("permission denied for table job")
    assert functions()["holdfast_viewer"] < functions()["holdfast_producer"] < functions()["holdfast_admin"]


@pytest.mark.req("DP-17")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_roles_and_logins_are_listed(holdfast: Holdfast, store: Store) -> None:
    listed = document(holdfast("roles", "--json"))
    assert [role["role"] for role in listed["roles"]] == list(MAY)
    (login,) = [row for row in listed["logins"] if row["name"] == "postgres"]
    assert login["bypasses"] is True
    result = holdfast("roles")
    assert result.exit_code == 0
    assert "holdfast_producer" in result.stdout
    assert "use it for migrations only" in result.stderr
    assert any("login postgres has" in finding.says for finding in store.diagnose() if finding.name == "login")
