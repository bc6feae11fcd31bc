"""The duty of deleting what cleaned jobs had in the artifact store (DP-16): payloads, results and artifacts.

What is to go was written down in the transaction that cleaned the job. It is deleted first and forgotten then: whoever
dies in between leaves it to the next, and deleting what is not there does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.artifacts import Artifacts
from holdfast.stores.aside import aside
from holdfast.stores.base import Caller, Store
from holdfast.stores.port.retention import Leftover

BATCH, BATCHES = 100, 20


async def clear(store: Store, *, artifacts: Artifacts, tenant: str, batches: int = BATCHES) -> int:
    """Nothing of it is a reason to look for jobs, so it answers 0. Mostly it is a look at a small table."""
    for _ in range(batches):
        found = await store.arun(store.verbs.leftovers(BATCH, tenant))
        if not found:
            break
        gone = await aside(_delete, artifacts, found)
        await store.arun(store.verbs.forget_leftovers(gone, tenant))
    return 0


def clear_now(caller: Caller, artifacts: Artifacts, tenant: str) -> int:
    """All there is, here and now; how much it was."""
    count = 0
    while found := caller.run(caller.verbs.leftovers(BATCH, tenant)):
        count += caller.run(caller.verbs.forget_leftovers(_delete(artifacts, found), tenant))
    return count


def _delete(artifacts: Artifacts, found: Sequence[Leftover]) -> list[str]:
    """What was there. What was not may lie in a store that another program knows: it is left to that, and forgotten by
    the bookkeeping if nobody has it."""
    there = [each for each in found if artifacts.exists(each.ref, tenant=each.tenant)]
    for each in there:
        artifacts.delete(each.ref, tenant=each.tenant)
    return [each.ref for each in there]
