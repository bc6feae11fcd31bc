"""After a claim or a maintenance task was refused: look for the rows that are to blame, so that the others go on."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.runtime.refusals import is_refusal
from holdfast.stores.base import Store

log = logging.getLogger("holdfast.worker")


async def set_aside(
    store: Store,
    error: BaseException,
    tenant: str,
    lease: str | None = None,
    queues: Sequence[str] = (),
    kinds: Sequence[str] | None = None,
) -> bool:
    """Whether rows were found, and are passed over from now on. Nothing is done about an error that is not of a row."""
    if not is_refusal(error):
        return False
    found = await store.arun(store.verbs.set_aside(lease, queues, kinds, tenant=tenant))
    for job_id in found:
        log.error("job %s is passed over: the database refuses to move it. holdfast show %s says why", job_id, job_id)
    return bool(found)
