"""Connector settings (JF-11) on both stores: per tenant, bounded, recorded, and without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import HoldfastError, InvalidSetting, Refused
from holdfast.features.assembly import Store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.connectors.model import ConnectorDraft
from tests.support.features import connect, drafted

pytestmark = pytest.mark.req("JF-11")


def test_settings_are_stored_changed_and_removed_per_tenant(store: Store) -> None:
    run = store.run
    headers = {"Accept": "text/plain", "Authorization": {"secret": "RATES_TOKEN", "prefix": "Bearer "}}
    made = connect(
        store, headers=headers, timeout="10s", max_bytes="64KB", hosts=["API.example.com:8443", "*.b.example"]
    )
    assert (made.tenant, made.name, made.enabled, made.set_by) == ("default", "http.request", True, "ada")
    assert (made.hosts, made.secrets) == (("api.example.com:8443", "*.b.example"), ("RATES_TOKEN",))
    assert (made.headers, made.timeout, made.max_bytes) == (headers, 10.0, 65_536)
    assert run(store.connectors.get("http.request", "default")) == made
    assert run(store.connectors.get("http.request", "acme")) is None
    changed = connect(store, actor="bob", enabled=False)
    assert (changed.enabled, changed.headers, changed.set_by) == (False, {}, "bob")
    assert (changed.created_at, changed.updated_at >= made.updated_at) == (made.created_at, True)
    connect(store, tenant="acme", hosts=["other.example"])
    connect(store, "webhook.deliver", tenant="acme")
    assert [each.name for each in run(store.connectors.list("acme"))] == ["http.request", "webhook.deliver"]
    assert [(each.name, each.tenant) for each in run(store.connectors.list("*"))] == [
        ("http.request", "acme"),
        ("http.request", "default"),
        ("webhook.deliver", "acme"),
    ]
    assert run(store.connectors.remove("http.request", "eve", "default"))
    assert not run(store.connectors.remove("http.request", "eve", "default"))
    assert run(store.connectors.get("http.request", "acme")) is not None
    with pytest.raises(HoldfastError):
        run(store.connectors.set(drafted(), "ada", "*"))
    actions = [
        (each.actor, each.type)
        for each in run(store.audit.actions(ActionFilter(tenant="default", subject="connector")))
    ]
    assert actions[::-1] == [("ada", "add"), ("bob", "change"), ("eve", "remove")]


def test_unnamed_settings_keep_their_value(store: Store) -> None:
    made = connect(store, timeout=5)
    again = ConnectorDraft.of("http.request", made, {"enabled": False})
    assert (again.hosts, again.secrets, again.timeout, again.enabled) == (made.hosts, made.secrets, 5.0, False)
    assert ConnectorDraft.of("http.request", made, {"timeout": None}).timeout is None


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"hosts": ["http://example.com/"]}, "invalid_connector"),
        ({"hosts": ["a b"]}, "invalid_connector"),
        ({"hosts": ["*"]}, "invalid_connector"),
        ({"hosts": ["a.example:70000"]}, "invalid_connector"),
        ({"hosts": "a.example"}, "invalid_connector"),
        ({"hosts": ["a.example"] * 1 + [f"h{n}.example" for n in range(200)]}, "invalid_connector"),
        ({"hosts": []}, "secrets_need_hosts"),
        ({"hosts": [], "secrets": [], "headers": {"X": {"secret": "A"}}}, "secrets_need_hosts"),
        ({"secrets": ["hunter-2"]}, "invalid_secret_name"),
        ({"secrets": ["A__B"]}, "invalid_secret_name"),
        ({"headers": {"X": {"secret": "whsec_abc"}}}, "invalid_secret_name"),
        ({"headers": {"X": {"value": "A"}}}, "invalid_connector"),
        ({"headers": {"X Y": "a"}}, "invalid_connector"),
        ({"headers": {"X": "a\r\nB: c"}}, "invalid_connector"),
        ({"headers": {"Authorization": "Basic dXNlcg=="}}, "secret_in_settings"),
        ({"headers": {"X-Api-Key": "abc"}}, "secret_in_settings"),
        ({"headers": {"X": "ghp_0123456789abcdef0123"}}, "secret_in_settings"),
        ({"timeout": 0}, "invalid_connector"),
        ({"timeout": "2h"}, "invalid_connector"),
        ({"max_bytes": "1GB"}, "invalid_connector"),
        ({"enabled": 1}, "invalid_connector"),
        ({"password": "x"}, "unknown_option"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises((InvalidSetting, Refused)) as caught:
        drafted(**settings)
    assert caught.value.code == code
    assert "ghp_" not in str(caught.value)
