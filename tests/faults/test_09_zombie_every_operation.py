"""Fault 9: every operation that takes a lease token gets a stale one, in Python and in SQL, and writes nothing.

Both lists are read from the code and the catalogue, so that new operations are included. This file checks that nothing
is written; `tests/contract/test_stale.py` checks the responses.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import psycopg
import pytest

from holdfast.engine.job import Claim, Exchange
from holdfast.engine.settlement import Settlement
from holdfast.engine.steps import StepEntry
from holdfast.errors import HoldfastError, StaleLease
from holdfast.features.assembly import Store
from holdfast.features.attempts.model import LogPart
from holdfast.stores.requests import ClaimRequest
from tests.support.direct_sql import ByHand, PostgresByHand
from tests.support.operations import operation, operations
from tests.support.stores import forward, open_lease, put_one, take

pytestmark = pytest.mark.req("DP-7", "DP-8", "SC-5")


@pytest.fixture
def zombie(store: Store) -> Claim:
    """A claim whose lease has expired and whose job runs on another worker; another job is queued."""
    put_one(store)
    old = take(store)
    forward(store, 60)
    assert store.run(store.leases.recover()).crashed == 1
    store.run(store.leases.promote())
    assert take(store).id == old.id
    put_one(store)
    return old


def arguments(store: Store, name: str, zombie: Claim) -> dict[str, Any] | None:
    """Return the arguments of a call with the stale token; None for an operation that takes no token."""
    settlements = [Settlement(zombie.id, zombie.attempt, "succeeded", result="1")]
    request = ClaimRequest(lease=zombie.lease, queues=("default",), want=5)
    known = {
        "lease": zombie.lease,
        "tenant": "*",
        "ids": [zombie.id],
        "id": zombie.id,
        "job_id": zombie.id,
        "claim_id": zombie.id,
        "attempt": zombie.attempt,
        "ttl": 30.0,
        "why": "closed",
        "name": "n",
        "value": "1",
        "ref": "file:x",
        "settlements": settlements,
        "entries": [(zombie.id, zombie.attempt, StepEntry(1, "charge", "step", "1"))],
        "parts": [LogPart(zombie.id, zombie.attempt, 1, "a line")],
        "request": request,
        "queues": ("default",),
    }
    parameters = inspect.signature(operation(store, name)).parameters
    if not {"lease", "request"} & parameters.keys():
        return None
    wanted = [name for name, each in parameters.items() if name != "self" and each.default is inspect.Parameter.empty]
    missing = [name for name in wanted if name not in known]
    assert not missing, f"{name} is new: add its arguments {missing} here"
    return {name: known[name] for name in wanted}


@pytest.mark.slow
def test_no_operation_writes_with_stale_token(store: Store, by_hand: ByHand, zombie: Claim) -> None:
    tried = []
    before = by_hand.contents()
    for name in sorted(operations()):
        parameters = arguments(store, name, zombie)
        if parameters is None:
            continue
        flow = operation(store, name)(**parameters)
        if not flow.writes:
            continue
        try:
            response = store.run(flow)
        except StaleLease:
            response = None
        if isinstance(response, Exchange):
            assert not response.claims
            response = response.stale
        elif name == "steps.save" and response is not None:
            assert {saved.fate for saved in response} == {"stale"}
            response = [saved.job_id for saved in response]
        assert not response or response == [zombie.id], f"{name} neither raises nor reports the job as stale"
        assert by_hand.contents() == before, name
        tried.append(name)
    assert {f"leases.{each}" for each in ("claim", "settle", "renew", "end", "start", "release")} <= set(tried)
    assert {"leases.exchange", "steps.save", "steps.save_checkpoint", "attempts.append_log"} <= set(tried)


# -- in SQL, PostgreSQL ----------------------------------------------------------------------------------------

# Every function with a lease parameter. Functions of triggers and state checks are not called directly.
FUNCTIONS = """
select p.proname, p.pronargs, p.pronargdefaults, p.proargnames,
       array(select format_type(t, null) from unnest(p.proargtypes) t)
  from pg_proc p
 where p.pronamespace = 'holdfast'::regnamespace and p.prokind = 'f' and p.provolatile = 'v'
   and (p.proargnames)[1:p.pronargs] && array['lease', 'p_lease', 'token']
 order by 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_no_sql_function_writes_with_stale_token(store: Store, by_hand: ByHand, zombie: Claim) -> None:
    assert isinstance(by_hand, PostgresByHand)
    known: dict[str, object] = {
        "lease": zombie.lease,
        "job": zombie.id,
        "jobs": [zombie.id],
        "attempt": zombie.attempt,
        "attempts": [zombie.attempt],
        "outcomes": ["succeeded"],
        "outcome": "succeeded",
        "queues": ["default"],
        "want": 5,
        "name": "n",
        "value": "1",
        "ref": "file:x",
        "code": "c",
        "message": "m",
        "detail": "{}",
        "entries": json.dumps(
            [{"job": zombie.id, "attempt": zombie.attempt, "n": 1, "name": "charge", "kind": "step", "value": 1}]
        ),
        "tenant": "*",
    }
    tried = []
    before = by_hand.contents()
    for function, count, defaults, names, types in by_hand.execute(FUNCTIONS):
        if function == "open_lease":  # creates a lease; its `token` names the new one
            continue
        wanted = list(zip(names, types, strict=False))[: count - defaults]
        values = [known.get(name.removeprefix("p_")) for name, _ in wanted]
        call = [f"%s::{kind}" for _, kind in wanted]
        optional = names[count - defaults : count]
        call += [f"lease => '{zombie.lease}'"] if "lease" in optional else []
        call += ["for_tenant => '*'"] if "for_tenant" in optional else []
        try:
            by_hand.connection.execute(f"select * from {function}({', '.join(call)})", values)
        except psycopg.Error as error:
            if error.sqlstate != "ZH003":
                raise
        assert by_hand.contents() == before, f"{function}({', '.join(names[:count])})"
        tried.append(function)
    assert {"settle_many", "claim_many", "succeed", "fail", "renew", "progress", "save_checkpoint"} <= set(tried)
    assert "save_steps" in tried


# -- with hand-written SQL ------------------------------------------------------------------------------------------

CHANGES = [
    "state = 'succeeded', lease = null, settled_by = :old, finished_at = {now}",
    "state = 'failed', lease = null, settled_by = :old, finished_at = {now}, error_code = 'x', error_message = 'x'",
    "state = 'retry_waiting', lease = null, settled_by = :old, due_at = {now}",
    "state = 'waiting_for_approval', lease = null, settled_by = :old, approval_id = :old",
    "lease = :old",
]


@pytest.mark.slow
def test_hand_written_update_with_stale_token_is_refused(store: Store, by_hand: ByHand, zombie: Claim) -> None:
    before = by_hand.contents()
    now = "(select now from present)"
    for change in CHANGES:
        refusal = by_hand.refusal(
            f"update job_state set {change.format(now=now)} where id = :id", {"old": zombie.lease, "id": zombie.id}
        )
        assert refusal is not None, change
        assert "lease" in refusal, refusal
        assert by_hand.contents() == before


def test_hand_written_claim_with_stale_token_is_refused(store: Store, by_hand: ByHand, zombie: Claim) -> None:
    claim = "update job_state set state = 'in_progress', lease = :old, attempt = attempt + 1 where state = 'queued'"
    refusal = by_hand.refusal(claim, {"old": zombie.lease})
    assert refusal is not None
    assert "live lease" in refusal


def test_malformed_token_is_refused(store: Store, zombie: Claim) -> None:
    for token in ("", "x", open_lease(store)[:-1]):
        with pytest.raises(HoldfastError):
            store.run(store.leases.settle(token, [Settlement(zombie.id, 1, "succeeded")], "*"))
