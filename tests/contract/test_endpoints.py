"""Endpoints (HF-20) on both stores: their settings, per tenant, recorded and without secrets."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import HoldfastError, InvalidSetting
from holdfast.features.assembly import Store
from holdfast.features.audit.store import ActionFilter
from holdfast.features.endpoints.model import EndpointDraft
from tests.support.features import endpoint

pytestmark = pytest.mark.req("HF-20")


def test_settings_are_stored_changed_and_removed_per_tenant(store: Store) -> None:
    run = store.run
    made = endpoint(store, kind="deploy", queue="fast", tolerance="1m", secrets=["NEW", "OLD"])
    assert (made.tenant, made.name, made.provider, made.secrets) == ("default", "github", "github", ("NEW", "OLD"))
    assert (made.kind, made.event, made.queue, made.tolerance, made.enabled) == ("deploy", None, "fast", 60.0, True)
    assert run(store.endpoints.get("github", "default")) == made
    assert run(store.endpoints.get("github", "acme")) is None
    changed = endpoint(store, actor="bob", enabled=False)
    assert (changed.enabled, changed.kind, changed.set_by) == (False, None, "bob")
    assert (changed.created_at, changed.updated_at >= made.updated_at) == (made.created_at, True)
    other = endpoint(store, tenant="acme", event="gh.*")
    assert run(store.endpoints.list("acme")) == [other]
    assert [(each.name, each.tenant) for each in run(store.endpoints.list("*"))] == [
        ("github", "acme"),
        ("github", "default"),
    ]
    assert not run(store.endpoints.remove("other", "eve", "default"))
    assert run(store.endpoints.remove("github", "eve", "default"))
    assert run(store.endpoints.get("github", "acme")) == other
    with pytest.raises(HoldfastError):
        endpoint(store, tenant="*")
    actions = [
        (each.actor, each.type) for each in run(store.audit.actions(ActionFilter(tenant="default", subject="endpoint")))
    ]
    assert actions[::-1] == [("ada", "add"), ("bob", "change"), ("eve", "remove")]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"provider": "paypal"}, "invalid_endpoint"),
        ({"provider": None}, "invalid_endpoint"),
        ({"secrets": []}, "invalid_webhook"),
        ({"secrets": ["whsec_c2VjcmV0"]}, "secret_by_name"),
        ({"event": "a.*", "kind": "b"}, "invalid_endpoint"),
        ({"queue": "fast"}, "invalid_endpoint"),
        ({"event": "job.*"}, "reserved_name"),
        ({"event": "schedule.missed"}, "reserved_name"),
        ({"tolerance": 0.5}, "invalid_endpoint"),
        ({"tolerance": "2h"}, "invalid_endpoint"),
        ({"enabled": "yes"}, "invalid_endpoint"),
        ({"nonsense": 1}, "unknown_option"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        EndpointDraft.of("github", None, {"provider": "github", "secrets": ["GITHUB"]} | options)
    assert refused.value.code == code


def test_unnamed_settings_keep_their_value(store: Store) -> None:
    made = endpoint(store, event="gh.*", tolerance=60)
    again = EndpointDraft.of("github", made, {"enabled": False})
    assert (again.event, again.tolerance, again.enabled, again.provider) == ("gh.*", 60.0, False, "github")
    assert EndpointDraft.of("github", made, {"event": None, "kind": "deploy"}).kind == "deploy"
