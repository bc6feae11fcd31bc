"""One child process, worker side; file descriptors not to inherit.

One child process, from the worker's side: start it, speak with it, and kill it with all it has started.

Invariant: nobody signals a process group that may be another's by now. The watcher kills what is left of the
group while its leader is dead and not yet waited for, so that the number is still taken; then the number is gone.

The worker's ends of the lines to its children and to their keeper, which no copy of the worker may hold.

A handler may fork, ``multiprocessing`` does. A copy that lives on when the worker is killed would keep the lines open,
and whoever is to see the end of the worker would wait for the end of the copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass

from holdfast.worker.processes.protocol import Garbled, Message, frame, receive
from holdfast.worker.processes.reaper import Reaper

_held: set[int] = set()


def hold(number: int) -> None:
    _held.add(number)


def let_go(number: int) -> None:
    """To be called before the file is closed: its number is soon another's."""
    _held.discard(number)


def _cut() -> None:
    """In the copy. The numbers stay taken, so that nobody closes another's file in the belief that it is this one."""
    if not _held:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in _held:
        os.dup2(nothing, number, inheritable=False)
    os.close(nothing)
    _held.clear()


os.register_at_fork(after_in_child=_cut)


# A dead process's last answer may still be on its way; a closed socket's process may take a moment to end.
AFTERMATH = 1.0


STRAY = "the process wrote something on its connection that is not ours, and was killed"


class ChildDied(Exception):
    """It ended, or closed its socket, before it had answered."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a child is started: the command, to which the number of its socket is added, and its first message.

    Children of equal recipes are as good as each other.
    """

    command: tuple[str, ...]
    hello: str


class Child:
    """Belongs to the event loop it was started on, and must be started on that loop's own thread: on Linux a
    child dies with the *thread* that started it."""

    def __init__(self, recipe: Recipe, keeper: Reaper) -> None:
        self.recipe = recipe
        self.jobs = 0
        self.knows: set[str] = set()
        ours, theirs = socket.socketpair()
        self._link = ours
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*recipe.command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        self._keeper = keeper
        hold(ours.fileno())
        try:
            keeper.watch(self.pid)
        except OSError:  # nobody would see to its end
            self._process.kill()
            self._process.wait()
            let_go(ours.fileno())
            ours.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._guard = threading.Lock()
        self._told = True  # how it ended
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answer: asyncio.Task[Message] | None = None
        threading.Thread(target=self._watch, name=f"holdfast-child-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    # --- speaking ---

    async def ask(self, message: Message) -> Message:
        """The answer, or ``ChildDied``. Whoever cancels this can still wait for the ``answer``, or kill."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(sock=self._link)
        assert self._reader is not None
        self._answer = asyncio.create_task(receive(self._reader))
        with contextlib.suppress(ConnectionError):  # then there will be no answer either
            self._writer.write(frame(message))
            await self._writer.drain()
        return await self.answer()

    async def answer(self) -> Message:
        assert self._answer is not None
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({self._answer, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not self._answer.done():
                await asyncio.wait({self._answer}, timeout=AFTERMATH)
        finally:
            ended.cancel()
        if self._answer.done() and self._answer.exception() is None:
            return self._answer.result()
        if not await self.gone(AFTERMATH):
            self.kill()
            await self.gone(AFTERMATH)
        raise ChildDied(STRAY if isinstance(self._answer.exception(), Garbled) else self._how())

    # --- ending ---

    def send_signal(self, number: int) -> None:
        """To the whole group: the child, and what it has started."""
        with self._guard:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def gone(self, patience: float) -> bool:
        """Whether it has ended, after having waited so long for it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), patience)
        return not self.alive

    async def leave(self, patience: float = 2.0) -> None:
        """Let an idle child put things in order and end; kill it if it takes too long."""
        if self._writer is not None and self.alive:
            with contextlib.suppress(ConnectionError):
                self._writer.write(frame({"end": True}))
                await self._writer.drain()
            await self.gone(patience)
        await self.discard()

    async def discard(self) -> None:
        """Kill it and let go of everything."""
        self.kill()
        await self.gone(AFTERMATH)
        if self._answer is not None:
            self._answer.cancel()
            await asyncio.wait({self._answer})
        let_go(self._link.fileno())
        if self._writer is None:
            self._link.close()
        else:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    def _watch(self) -> None:
        """In a thread: the only place where it is waited for, whoever kills it."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # somebody else has waited for it: for a moment the number is nobody's
            self._told = False
        except AttributeError:  # a system without it: the same
            self._process.wait()
        with self._guard:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is interested any more
            self._loop.call_soon_threadsafe(self._is_gone)

    def _is_gone(self) -> None:
        self._ended.set()
        self._keeper.forget(self.pid)

    def _how(self) -> str:
        code = self._process.returncode
        if not self._told:
            return (
                "the process has ended, and somebody else was told how (SIGCHLD is ignored, or a handler waits for it)"
            )
        if code is None:
            return "the process closed its connection and would not end"
        if code >= 0:
            return f"the process ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        return f"the process was killed by signal {-code} ({name})"
