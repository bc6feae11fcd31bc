"""What the store says is held here, compared with what runs here."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from holdfast.runtime.execution import ended_by_itself
from holdfast.runtime.slots import Slots
from holdfast.stores.base import Store


async def held_under(store: Store, lease: str, tenant: str) -> dict[str, int]:
    """The jobs under a lease, each with its attempt."""
    # Over a connection of the exchanges: after a loss the next exchange needs one, too.
    asked = replace(store.verbs.holdings(lease, tenant), hot=True)
    return {holding.id: holding.attempt for holding in await store.arun(asked)}


async def taken_away(store: Store, running: Iterable[str], held: Container[str], tenant: str) -> set[str]:
    """What runs and is no longer held, because somebody cancelled it. A handler that has committed its own
    transaction holds nothing either, and goes on."""
    missing = [job_id for job_id in running if job_id not in held]
    return {job_id for job_id in missing if not await ended_by_itself(store, job_id, tenant)}


async def compare(store: Store, slots: Slots, lease: str, tenant: str) -> None:
    """After an error nobody knows what became of the last turn. Whatever the store thinks we hold and we know
    nothing of is handed back: it was taken, but never begun. What it no longer holds for us is dropped.

    To be called while no turn is under way.
    """
    begun = set(slots.running)  # some of it may end while the store is asked
    held = await held_under(store, lease, tenant)
    slots.forget(await taken_away(store, begun, held, tenant), "cancelled")
    slots.ended = [item for item in slots.ended if held.get(item.id) == item.attempt]
    known = begun | {item.id for item in slots.ended} | slots.unmovable
    slots.decline((job_id, attempt) for job_id, attempt in held.items() if job_id not in known)
