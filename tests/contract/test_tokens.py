"""API tokens in the database: found across tenants by their hash only; sessions end with them."""

from __future__ import annotations

import re
from contextlib import closing

import psycopg
import pytest

from holdfast.errors import Refused
from holdfast.features.assembly import Store, open_store
from holdfast.features.tokens.model import hash_of, new_token
from tests.support.direct_sql import PostgresByHand
from tests.support.features import issuing, open_session
from tests.support.postgres_roles import OwnedDatabases, as_role, ensure_roles
from tests.support.stores import forward

pytestmark = pytest.mark.req("JF-14", "JF-2")


def test_token_is_valid_until_revoked_or_expired(store: Store) -> None:
    run = store.run
    short, long = new_token(), new_token()
    forward(store)
    run(store.tokens.issue(issuing(short, expires=10), "ada", "default"))
    issued = run(store.tokens.issue(issuing(long, ("admin", "viewer")), "ada", "acme"))
    assert (issued.tenant, issued.roles, issued.scopes, issued.expires_at) == ("acme", ("admin", "viewer"), (), None)
    assert run(store.tokens.find(hash_of(long))) == issued
    assert run(store.tokens.find(hash_of(new_token()))) is None
    session, opened = open_session(store, long, 3600)
    assert opened is not None
    assert (opened.parent_id, opened.tenant, opened.roles) == (issued.id, "acme", issued.roles)
    brief, bounded = open_session(store, short, 3600)
    assert bounded is not None
    assert (run(store.clock.now()), bounded.expires_at) == (bounded.created_at, bounded.expires_at)
    assert (bounded.expires_at - bounded.created_at).total_seconds() == 10  # type: ignore[operator]
    assert open_session(store, session)[1] is None, "a session opens no session"
    forward(store, 11)
    assert run(store.tokens.find(hash_of(short))) is None
    assert run(store.tokens.find(hash_of(brief))) is None
    assert run(store.tokens.find(hash_of(session))) is not None
    assert run(store.tokens.revoke(issued.id, "bob", "default")) is None, "it belongs to another tenant"
    revoked = run(store.tokens.revoke(issued.id, "bob", "acme"))
    assert revoked is not None
    assert revoked.revoked_by == "bob"
    assert run(store.tokens.find(hash_of(long))) is run(store.tokens.find(hash_of(session))) is None
    assert [each.id for each in run(store.tokens.list("acme"))] == [issued.id]
    assert len(run(store.tokens.list("*", sessions=True))) == 4
    newest = run(store.tokens.list("*", sessions=True, limit=1))[0]
    assert newest.id not in {each.id for each in run(store.tokens.list("*", sessions=True, before=newest.id))}


def test_last_use_is_recorded_at_most_once_a_minute(store: Store) -> None:
    run = store.run
    text = new_token()
    run(store.tokens.issue(issuing(text), "ada", "default"))

    def used() -> object:
        run(store.tokens.used(hash_of(text)))
        return run(store.tokens.list("default"))[0].last_used_at

    first = forward(store)
    assert used() == first
    forward(store, 59)
    assert used() == first
    assert used() != (later := forward(store, 1))
    assert used() == later


def test_session_can_be_ended_alone(store: Store) -> None:
    text = new_token()
    store.run(store.tokens.issue(issuing(text), "ada", "default"))
    session, _ = open_session(store, text)
    assert not store.run(store.tokens.end_session(hash_of(text))), "a token is no session"
    assert store.run(store.tokens.end_session(hash_of(session)))
    assert not store.run(store.tokens.end_session(hash_of(session)))
    assert store.run(store.tokens.find(hash_of(text))) is not None


def test_plain_role_finds_a_token_by_hash_and_lists_none(owned_databases: OwnedDatabases) -> None:
    mine, whole = new_token(), new_token()
    with owned_databases.fresh() as url:
        with closing(open_store(as_role(url, owned_databases.owner))) as owner:
            owner.run(owner.tokens.issue(issuing(mine), "ada", "acme"))
            owner.run(owner.tokens.issue(issuing(whole), "ada", "*"))
        with psycopg.connect(url, autocommit=True) as connection:
            ensure_roles(connection, "holdfast_viewer")
        with closing(open_store(as_role(url, "holdfast_viewer"))) as viewer:
            result = viewer.run(viewer.tokens.find(hash_of(mine)))
            assert result is not None
            assert result.tenant == "acme"
            assert viewer.run(viewer.tokens.find(hash_of(whole))) is not None
            viewer.run(viewer.tokens.used(hash_of(mine)))
            session, opened = open_session(viewer, mine)
            assert opened is not None
            assert viewer.run(viewer.tokens.end_session(hash_of(session)))
            with pytest.raises(Refused, match="may not act for every tenant") as refused:
                open_session(viewer, whole)
            assert {"holdfast_executor", "holdfast_admin"} <= set(re.findall(r"\w+", str(refused.value.fix)))
            with pytest.raises(Refused):
                viewer.run(viewer.tokens.list("acme"))
        # A session without a hash cannot use the policy for presented tokens.
        with closing(PostgresByHand(as_role(url, "holdfast_admin"), tenant="umbrella")) as by_hand:
            assert by_hand.execute("select count(id) from api_token") == [(0,)]
            by_hand.execute("select set_config('holdfast.presented', '%', false)")
            assert by_hand.execute("select count(id) from api_token") == [(0,)]
