"""Why a job is where it is, and does not run (HF-2): every reason that holds, in words, and what would change it. Pure.

Each reason is a small function of the whole scene that answers a ``Reason`` or nothing, and knows of no other. A new
one is written (in ``why_over``, ``why_waiting`` or ``why_workers``), and put into ``REASONS``, in the order in which
people should read them. What holds a queued job for another reason than time says so in its note (``{"held": …}``);
what that means is in ``why_held``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.domain.reason import Reason
from holdfast.domain.scene import Scene
from holdfast.domain.why_over import cancelled, cleaned, dead_letter, failed, retried, succeeded
from holdfast.domain.why_waiting import (
    agent_disabled,
    deadline,
    held,
    in_a_call,
    limited,
    not_due,
    paused,
    reserved,
    retry_waiting,
    snoozed,
    to_be_promoted,
    waiting_for_approval,
)
from holdfast.domain.why_workers import (
    all_busy,
    its_turn,
    jobs_ahead,
    lease_lapsed,
    no_worker,
    no_worker_for_kind,
    no_worker_for_queue,
    prefetched,
    refused_executors,
    running,
    tenant_turn,
)

REASONS: Final[tuple[Callable[[Scene], Reason | None], ...]] = (
    succeeded,
    retried,
    failed,
    dead_letter,
    cancelled,
    cleaned,
    running,
    prefetched,
    lease_lapsed,
    in_a_call,
    retry_waiting,
    snoozed,
    waiting_for_approval,
    agent_disabled,
    paused,
    held,
    limited,
    reserved,
    not_due,
    deadline,
    to_be_promoted,
    no_worker,
    no_worker_for_queue,
    no_worker_for_kind,
    refused_executors,
    all_busy,
    jobs_ahead,
    tenant_turn,
    its_turn,
)


def reasons(scene: Scene) -> list[Reason]:
    """Every one that holds."""
    return [reason for look in REASONS if (reason := look(scene)) is not None]
