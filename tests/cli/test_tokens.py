"""`holdfast tokens`."""

from __future__ import annotations

import pytest

from holdfast.features.assembly import Store
from holdfast.features.tokens.model import hash_of, is_token
from tests.cli.conftest import Holdfast, document, error_of


@pytest.mark.req("JF-14")
def test_tokens_are_issued_listed_and_revoked(holdfast: Holdfast, store: Store) -> None:
    assert "No token has been issued." in holdfast("tokens", "list").stderr
    result = holdfast("tokens", "issue", "ci", "--role", "producer", "--expires", "90d", "--tenant", "acme")
    text = result.stdout.strip()
    assert is_token(text)
    assert "It allows enqueue, read for tenant acme." in result.stderr
    found = store.run(store.tokens.find(hash_of(text)))
    assert found is not None
    assert (found.tenant, found.name) == ("acme", "ci")
    made = document(holdfast("tokens", "issue", "ops", "--role", "admin", "--scope", "read", "--all-tenants", "--json"))
    assert (made["token"]["tenant"], made["token"]["scopes"]) == ("*", ["read"])
    assert document(holdfast("tokens", "list", "--json")) == []
    listed = holdfast("tokens", "list", "--all-tenants")
    assert listed.stdout.count("hf_") == 2
    assert text not in listed.stdout
    assert "admin (read)" in listed.stdout
    gone = holdfast("tokens", "revoke", found.id, "--json")
    assert (gone.exit_code, error_of(gone)["code"]) == (3, "token_not_found"), "it belongs to another tenant"
    assert "is revoked" in holdfast("tokens", "revoke", found.id, "--tenant", "acme").stdout
    assert store.run(store.tokens.find(hash_of(text))) is None
    assert "revoked by" in holdfast("tokens", "list", "--tenant", "acme").stdout
    for wrong, code in (
        (["x"], "usage"),
        (["x", "--role", "root"], "unknown_role"),
        (["x", "--role", "executor", "--scope", "read"], "token_without_scope"),
        (["*", "--role", "viewer"], "invalid_name"),
        (["x", "--role", "viewer", "--expires", "never"], "invalid_time"),
        (["x", "--role", "viewer", "--expires", "0s"], "invalid_duration"),
    ):
        refused = holdfast("tokens", "issue", *wrong, "--json")
        assert (refused.exit_code, error_of(refused)["code"]) == (2, code), wrong
