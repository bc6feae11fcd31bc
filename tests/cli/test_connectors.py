"""`holdfast connectors`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Holdfast, document, error_of


@pytest.mark.req("JF-11")
def test_connectors_are_set_shown_listed_and_removed(holdfast: Holdfast) -> None:
    assert "No connector settings" in holdfast("connectors", "list").stderr
    made = document(
        holdfast(
            *("connectors", "set", "http.request", "--host", "api.example.com", "--host", "*.b.example:8443"),
            *("--header", "Accept=text/plain", "--secret-header", "Authorization=RATES_TOKEN", "--prefix", "Bearer "),
            *("--secret", "RATES_TOKEN", "--timeout", "10s", "--max-bytes", "64KB", "--json"),
        )
    )
    assert made["hosts"] == ["api.example.com", "*.b.example:8443"]
    assert made["headers"] == {
        "Accept": "text/plain",
        "Authorization": {"secret": "RATES_TOKEN", "prefix": "Bearer "},
    }
    assert (made["secrets"], made["timeout"], made["max_bytes"]) == (["RATES_TOKEN"], 10.0, 65_536)
    assert document(holdfast("connectors", "show", "http.request", "--json")) == made
    assert document(holdfast("connectors", "list", "--json")) == [made]
    assert document(holdfast("connectors", "list", "--tenant", "acme", "--json")) == []
    shown = holdfast("connectors", "set", "http.request", "--disabled").stdout
    assert "Authorization: Bearer the secret RATES_TOKEN" in shown
    assert "http.request" in holdfast("connectors", "list", "--all-tenants").stdout
    for wrong, code in (
        (["--any-host"], "secrets_need_hosts"),
        (["--any-host", "--host", "a.example"], "conflicting_options"),
        (["--secret", "hunter-2"], "invalid_secret_name"),
        (["--header", "X-Api-Key=12345678"], "secret_in_settings"),
        (["--host", "http://a.example/"], "invalid_connector"),
    ):
        result = holdfast("connectors", "set", "http.request", *wrong, "--json")
        assert (result.exit_code in (2, 4), error_of(result)["code"]) == (True, code)
    assert document(holdfast("connectors", "remove", "http.request", "--json")) == {
        "name": "http.request",
        "removed": True,
    }
    gone = holdfast("connectors", "show", "http.request", "--json")
    assert (gone.exit_code, error_of(gone)["code"]) == (3, "connector_not_found")
