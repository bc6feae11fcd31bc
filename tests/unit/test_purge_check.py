"""A purge is believed only if the jobs that it names are gone."""

from __future__ import annotations

import json

import pytest

from holdfast.features.audit.model import Purged, digest_of
from holdfast.features.audit.verification import Check, Proof

pytestmark = pytest.mark.req("HF-4")

JOB = "01900000-0000-7000-8000-000000000001"
CLEANED = [3, "mail", "succeeded", 1, 0, "retention", json.dumps({"events": "1,2"}), None]
CHANGED = {"events": "1-3", "count": 3, "jobs": {JOB: CLEANED}}
PURGE = (9, "default", 0, "retention", "purge", "ledger", "1 jobs", json.dumps(CHANGED), 1, 3, None)


@pytest.mark.parametrize(
    ("alive", "says"),
    [((), []), ((JOB,), [f"action 9 is a purge of job {JOB}, which still exists"])],
    ids=["gone", "alive"],
)
def test_a_purge_of_a_job_that_still_exists_is_forged(alive: tuple[str, ...], says: list[str]) -> None:
    sealed = {3: digest_of("event", Purged.of(PURGE).cleaned[JOB])}
    check = Check()
    check._check_purge(PURGE, Proof(sealed, frozenset(alive)), old=False)
    assert [flaw.says for flaw in check.end().flaws] == says
