"""``ctx.branch``: calls in a branch are identified by the branch and their number in it, so branches may run at once.

The branch of a task or thread is a context variable: what is started inside a branch belongs to it.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.engine.names import check_name
from holdfast.errors import InvalidSetting

if TYPE_CHECKING:
    from holdfast.steps.handler_run import ThreadDriver
    from holdfast.steps.plan import Plan

ROOT = ""
"""The path of calls outside of branches."""
NAME_LIMIT = 60
DEPTH_LIMIT = 5


@dataclass(slots=True, eq=False)
class Branch:
    path: str
    calls: int = 0
    uses: dict[str, int] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    """The full names of the branches in it."""

    def next(self) -> int:
        self.calls += 1
        return self.calls

    def child(self, name: str) -> Branch:
        if name in self.open:
            raise InvalidSetting(
                f"branch {name!r} is open already: branches that run at once need different names", code="branch_open"
            )
        self.open.add(name)
        uses = self.uses[name] = self.uses.get(name, 0) + 1
        full = name if uses == 1 else f"{name} ({uses})"
        self.begun.add(full)
        return Branch(f"{self.path}/{full}" if self.path else full)


_current: ContextVar[Branch | None] = ContextVar("holdfast_branch", default=None)


def current_branch() -> Branch | None:
    return _current.get()


def current_path() -> str:
    branch = _current.get()
    return ROOT if branch is None else branch.path


def within(path: str, branch: str) -> bool:
    """Whether a path is that of this branch, or of one inside it."""
    return branch == ROOT or path == branch or path.startswith(f"{branch}/")


def check_branch(name: object) -> str:
    text = check_name(name, "branch", limit=NAME_LIMIT)
    if "/" in text:
        raise InvalidSetting("the name of a branch contains no slash", code="invalid_name")
    if current_path().count("/") >= DEPTH_LIMIT - 1:
        raise InvalidSetting(f"branches are at most {DEPTH_LIMIT} levels deep", code="branch_too_deep")
    return text


class _Entered:
    """The context manager of one branch. Its parent is the branch in which it is entered."""

    __slots__ = ("_name", "_parent", "_token")

    def __init__(self, name: str) -> None:
        self._name = name
        self._parent: Branch | None = None
        self._token: Token[Branch | None] | None = None

    def _enter(self, plan: Plan) -> None:
        self._parent = _current.get() or plan.root
        self._token = _current.set(self._parent.child(self._name))

    def _exit(self) -> None:
        assert self._parent is not None
        assert self._token is not None
        self._parent.open.discard(self._name)
        _current.reset(self._token)


class AwaitedBranch(_Entered):
    """``async with ctx.branch("north"): …``"""

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan, name: str) -> None:
        super().__init__(name)
        self._plan = plan

    async def __aenter__(self) -> None:
        await self._plan.durable.remember()  # the position of a call depends on what is recorded
        self._enter(self._plan)

    async def __aexit__(self, *_: object) -> None:
        self._exit()


class BlockingBranch(_Entered):
    """``with ctx.branch("north"): …``"""

    __slots__ = ("_driver",)

    def __init__(self, driver: ThreadDriver, name: str) -> None:
        super().__init__(name)
        self._driver = driver

    def __enter__(self) -> None:
        self._driver.run_on_loop(self._driver.plan.durable.remember())
        self._enter(self._driver.plan)

    def __exit__(self, *_: object) -> None:
        self._exit()
