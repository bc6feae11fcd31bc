"""Gates of a service: what waits for people, and what they say of it."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

from holdfast.engine.units import Duration, seconds
from holdfast.features.approvals.model import Gate, GateState, VerdictWord
from holdfast.features.approvals.operations import Asked
from holdfast.http.colours import Noun, many, verb
from holdfast.http.reading import read
from holdfast.http.runners import Items, Runner
from holdfast.http.wire import Steps, get, given, post, segment

C = TypeVar("C", bound=Runner)


class GatesWanted(TypedDict, total=False):
    """``approver`` leaves out what this person may not decide."""

    state: GateState | Literal["all"]
    approver: str
    name: str
    job: str


class Approvals(Noun[C], Generic[C]):
    @verb
    def list(self, *, limit: int = 50, after: str | None = None, **wanted: Unpack[GatesWanted]) -> Steps[list[Gate]]:
        """Open gates, the oldest first: ``client.approvals.list(approver="ada@example.com")``."""
        return (yield from self._some(Gate, "/gates", limit, after, **wanted))

    @many
    def every(self, **wanted: Unpack[GatesWanted]) -> Items[Gate]:
        """All of them, read page by page as you go."""
        yield from self._every(Gate, "/gates", **wanted)

    @verb
    def show(self, gate: str) -> Steps[Asked]:
        """A gate, what was said of it and the job that asked."""
        return (yield from self._read(Asked, get(f"/gates/{segment(gate)}")))

    @verb
    def approve(self, gate: str, *, comment: str | None = None, data: Any = None) -> Steps[Gate]:
        """Say yes, as whom the token names. Answers the gate as it is now: still open when more have to agree."""
        return (yield from decided(self, "approve", gate, comment, data))

    @verb
    def deny(self, gate: str, *, comment: str | None = None, data: Any = None) -> Steps[Gate]:
        return (yield from decided(self, "deny", gate, comment, data))

    @verb
    def token(self, gate: str, *, person: str | None = None, expires_in: Duration | None = None) -> Steps[str]:
        """A token that decides this gate once. It is shown here and nowhere else."""
        span = None if expires_in is None else seconds(expires_in, "expires_in")
        answer = yield from self._ask(post(f"/gates/{segment(gate)}/token", given(person=person, expires_in=span)))
        return read(dict[str, str], answer)["token"]


def decided(noun: Noun[Any], word: VerdictWord, gate: str, comment: str | None, data: Any) -> Steps[Gate]:
    return (yield from noun._read(Gate, post(f"/gates/{segment(gate)}/{word}", given(comment=comment, data=data))))
