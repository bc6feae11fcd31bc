"""Connector settings over HTTP: for admins, per tenant, and without secrets."""

from __future__ import annotations

import httpx2
import pytest

from holdfast import App
from tests.api.conftest import client_of

CONNECTORS = "/api/v1/connectors"


@pytest.mark.slow
@pytest.mark.req("JF-11", "JF-14")
async def test_connectors_are_set_and_shown_over_http(app: App, http: httpx2.AsyncClient) -> None:
    settings = {
        "hosts": ["api.example.com"],
        "secrets": ["RATES_TOKEN"],
        "headers": {"Accept": "text/plain", "Authorization": {"secret": "RATES_TOKEN", "prefix": "Bearer "}},
        "timeout": "10s",
    }
    made = (await http.put(f"{CONNECTORS}/http.request", json=settings)).json()
    assert {name: made[name] for name in ("hosts", "secrets", "headers", "timeout")} == settings | {"timeout": 10.0}
    changed = (await http.put(f"{CONNECTORS}/http.request", json={"enabled": False})).json()
    assert (changed["enabled"], changed["hosts"], changed["headers"]) == (False, settings["hosts"], settings["headers"])
    assert (await http.get(CONNECTORS)).json()["items"] == [changed]
    for wrong, code in (
        ({"headers": {"Authorization": "Bearer 12345678"}}, "secret_in_settings"),
        ({"hosts": []}, "secrets_need_hosts"),
        ({"secrets": ["hunter-2"]}, "invalid_secret_name"),
        ({"password": "x"}, "invalid_request"),
        ({"hosts": ["x"] * 201}, "invalid_request"),
    ):
        refused = await http.put(f"{CONNECTORS}/http.request", json=wrong)
        assert (refused.status_code in (409, 422), refused.json()["code"]) == (True, code)
        assert "12345678" not in refused.text
    async with client_of(app, role="operator") as operator, client_of(app, role="admin", tenant="acme") as other:
        assert (await operator.put(f"{CONNECTORS}/http.request", json={})).status_code == 403
        assert (await operator.get(f"{CONNECTORS}/http.request")).json() == changed
        assert (await other.get(f"{CONNECTORS}/http.request")).status_code == 404
        assert (await other.delete(f"{CONNECTORS}/http.request")).status_code == 404
    assert (await http.delete(f"{CONNECTORS}/http.request")).status_code == 204
    assert (await http.get(f"{CONNECTORS}/http.request")).json()["code"] == "connector_not_found"
