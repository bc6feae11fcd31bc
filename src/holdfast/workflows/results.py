"""What the parents of a job returned, as ``ctx.results()``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.states import State
from holdfast.errors import JobFailed
from holdfast.features.workflows.model import ParentResult

if TYPE_CHECKING:
    from holdfast.kind import Kind

R = TypeVar("R")


class Results(Mapping[str, Any]):
    """By the name of the parent: ``results["fetch"]``, as it was stored; ``results.of(fetch)`` has the kind's own type.

    A parent that did not succeed is among them (where a failure lets its children go on): to ask for its result raises
    ``JobFailed``, and ``states`` tells beforehand.
    """

    def __init__(self, parents: Sequence[ParentResult]) -> None:
        self._parents = {parent.name or parent.job_id: parent for parent in parents}

    def __getitem__(self, name: str) -> Any:
        return _value(self._parents[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parents)

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def states(self) -> dict[str, State]:
        return {name: parent.state for name, parent in self._parents.items()}

    @property
    def succeeded(self) -> dict[str, Any]:
        """Of those that did."""
        return {name: p.value for name, p in self._parents.items() if p.state is State.SUCCEEDED}

    def of(self, kind: Kind[..., R]) -> list[R]:
        """What the parents of this kind returned, in the order in which they were added."""
        decode, name = kind.signature.unpack_result, kind.name
        return [decode(_value(parent)) for parent in self._parents.values() if parent.kind == name]

    def one(self, kind: Kind[..., R]) -> R:
        """What the only parent of this kind returned."""
        (found,) = self.of(kind)
        return found


def _value(parent: ParentResult) -> Any:
    if parent.state is not State.SUCCEEDED:
        raise JobFailed(f"parent {parent.name or parent.job_id} is {parent.state}: there is no result")
    return parent.value
