"""Settings of connectors over HTTP (JF-11): an admin's, of one tenant, with no secret in or out."""

from __future__ import annotations

import httpx2
import pytest

from holdfast import App
from tests.api.conftest import client_of

PLACE = "/api/v1/connectors"


@pytest.mark.slow
@pytest.mark.req("JF-11", "JF-14")
async def test_connectors_are_set_and_shown_over_http(app: App, http: httpx2.AsyncClient) -> None:
    says = {
        "hosts": ["api.example.com"],
        "secrets": ["RATES_TOKEN"],
        "headers": {"Accept": "text/plain", "Authorization": {"secret": "RATES_TOKEN", "prefix": "Bearer "}},
        "timeout": "10s",
    }
    made = (await http.put(f"{PLACE}/http.request", json=says)).json()
    assert {name: made[name] for name in ("hosts", "secrets", "headers", "timeout")} == says | {"timeout": 10.0}
    changed = (await http.put(f"{PLACE}/http.request", json={"enabled": False})).json()
    assert (changed["enabled"], changed["hosts"], changed["headers"]) == (False, says["hosts"], says["headers"])
    assert (await http.get(PLACE)).json()["items"] == [changed]
    for wrong, code in (
        ({"headers": {"Authorization": "Bearer 12345678"}}, "secret_in_settings"),
        ({"hosts": []}, "secrets_need_hosts"),
        ({"secrets": ["hunter-2"]}, "invalid_secret_name"),
        ({"password": "x"}, "invalid_request"),
        ({"hosts": ["x"] * 201}, "invalid_request"),
    ):
        told = await http.put(f"{PLACE}/http.request", json=wrong)
        assert (told.status_code in (409, 422), told.json()["code"]) == (True, code)
        assert "12345678" not in told.text
    async with client_of(app, role="operator") as operator, client_of(app, role="admin", tenant="acme") as other:
        assert (await operator.put(f"{PLACE}/http.request", json={})).status_code == 403
        assert (await operator.get(f"{PLACE}/http.request")).json() == changed
        assert (await other.get(f"{PLACE}/http.request")).status_code == 404
        assert (await other.delete(f"{PLACE}/http.request")).status_code == 404
    assert (await http.delete(f"{PLACE}/http.request")).status_code == 204
    assert (await http.get(f"{PLACE}/http.request")).json()["code"] == "connector_not_found"
