"""docs/reference/attacks.md can be repeated: its setup works, and each attack is refused as the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast.features.assembly import open_store
from tests.attacks import ATTACKS
from tests.attacks.attack import attacks
from tests.docs.attacks_page import GROUPS, NAMES, PAGE, SPELT, setup
from tests.support.direct_sql import ByHand, open_by_hand
from tests.support.ledger import check_ledger

pytestmark = pytest.mark.req("CX-1", "CX-3", "CX-4", "CX-13", "DP-7")


@pytest.fixture
def url(url: str) -> Iterator[str]:
    with closing(open_store(url)) as store:
        store.migrate()
        yield url
        check_ledger(store)


@pytest.fixture
def world(url: str) -> Iterator[tuple[ByHand, dict[str, Any]]]:
    """The database of the page, which must be unchanged after the test."""
    with closing(open_by_hand(url)) as by_hand:
        names: dict[str, Any] = {**NAMES, **SPELT[by_hand.name]}
        for statement in setup(by_hand.name):
            by_hand.execute(statement, _used(names, statement))
        before = by_hand.contents()
        yield by_hand, names
        assert by_hand.contents() == before


def refusal(world: tuple[ByHand, dict[str, Any]], statements: tuple[str, ...]) -> str | None:
    by_hand, names = world
    message = None
    by_hand.begin()
    for statement in statements:
        message = by_hand.refusal(statement, _used(names, statement))
        if message is not None:
            break
    by_hand.rollback()
    return message


def test_attacks_are_refused_as_the_page_says(world: tuple[ByHand, dict[str, Any]]) -> None:
    which = int(world[0].name == "postgres")
    tried = 0
    for _, table in GROUPS.values():
        for attack in attacks(table):
            statements = (attack.sqlite, attack.postgres)[which]
            if statements:
                tried += 1
                message = refusal(world, statements)
                assert message is not None, f"{attack.name}: was not refused"
                assert attack.says[which] in message, attack.name
    assert tried > 100


# Each row of the summary in guarantees.md, and the attack that proves it.
SUMMARY = {
    "an illegal transition": "skip the queue",
    "change a payload": "change the payload",
    "change another fact of a job": "change the fact kind",
    "edit a ledger row": "change the actor of an event",
    "delete from the ledger": "delete one event",
    "write into the ledger": "insert an event",
    "change retries, limits, priority or times directly": "update job_state set priority = 9 where id = :running",
    "change directly what holds back a job": "hold back a job for nothing",
    "revive a lease, or delete it while it holds jobs": "delete from lease where id = :lease",
    "shorten a lease": "shorten a lease",
    "end an attempt without its lease": "succeed without a lease token",
    "claim a job without a valid lease": "claim under an unknown lease",
    "declare a running worker lost": "declare a live lease lost",
    "continue without a decision": "approve by changing only the state",
    "set a decision without votes": "mark an approval as approved without the votes",
    "change a request or a decision": "change a decision",
    "vote for a person who may not": "vote as a person who is not an approver",
    "use a token twice": "mark a used token as unused",
    "change a completed step": "change the value of a finished step",
    "break an invariant between fields": "clear the end of a succeeded job",
    "delete a job that is not cleaned": "delete a state",
}
ILLEGAL = "update job_state set state = 'succeeded', finished_at = (select now from present) where id = :queued"


def test_summary_in_guarantees_is_correct(world: tuple[ByHand, dict[str, Any]]) -> None:
    page = (PAGE.parent / "guarantees.md").read_text(encoding="utf-8")
    section = page.partition("## What the database refuses")[2].partition("\n## ")[0]
    titles = re.findall(r"^- (.+)$", section, re.MULTILINE)
    assert titles == list(SUMMARY)
    which = int(world[0].name == "postgres")
    for title in titles:
        attack = ATTACKS.get(SUMMARY[title])
        by_itself = (SUMMARY[title] if " where " in SUMMARY[title] else ILLEGAL,)
        assert refusal(world, (attack.sqlite, attack.postgres)[which] if attack else by_itself) is not None, title


def _used(names: dict[str, Any], statement: str) -> dict[str, Any]:
    return {name: value for name, value in names.items() if f":{name}" in statement}
