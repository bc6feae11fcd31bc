"""Fault 3 for children, races and branches: workers are killed with -9 at random moments, and every job ends the same
way: with each child made once, each step's effect under one key, and one winner of each race.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from holdfast import App, State
from holdfast.app.internals import session_of
from holdfast.engine.states import FINISHED
from tests.faults.checker import check
from tests.faults.durable_jobs import FAMILY_KINDS, FAMILY_RESULT, MEMBERS
from tests.faults.effects import effects
from tests.faults.kill_points import run_worker
from tests.faults.workload import PATIENT
from tests.support.forkserver import start_call
from tests.support.stores import put, spec
from tests.support.waiting import until

pytestmark = pytest.mark.req("HF-16", "CX-8")


@pytest.mark.slow
def test_families_recover_from_random_kills(url: str, tmp_path: Path, choice: random.Random) -> None:
    app = App(url)
    store = session_of(app).store
    families = put(store, *(spec(kind, retry=PATIENT) for kind in FAMILY_KINDS * 4))

    def respond() -> list[str]:
        for job in families:
            app.send_event("word", {"job": job, "what": "yes"}, key=job)
        return [job for job in families if app.jobs.get(job).state not in FINISHED]

    workers = [start_call(run_worker, url, str(tmp_path), None, "worker") for _ in range(2)]
    try:
        for _ in range(5):
            time.sleep(choice.uniform(0.05, 1.0))  # a random moment
            victim = workers.pop(choice.randrange(2))
            victim.kill()
            victim.join(10)
            workers.append(start_call(run_worker, url, str(tmp_path), None, "worker"))
        until(lambda: not respond(), "all families have ended", 120)
    finally:
        for worker in workers:
            worker.kill()
            worker.join(10)
    members = list(app.jobs.list(kind="member", limit=1000))
    check(url, [*families, *(job.id for job in members)], folder=tmp_path)
    for job in families:
        assert app.jobs.get(job).state is State.SUCCEEDED
        result = store.run(store.jobs.result(job, "*"))
        assert result is not None
        assert result.value == FAMILY_RESULT
    assert Counter(job.parent_id for job in members) == dict.fromkeys(families, MEMBERS)
    keys: dict[tuple[str, str], set[str]] = {}
    for effect in effects(tmp_path):
        if effect.what.startswith("ask-"):
            what, key = effect.what.split()
            keys.setdefault((effect.job, what), set()).add(key)
    assert len(keys) == 2 * len(families)
    assert {len(each) for each in keys.values()} == {1}
