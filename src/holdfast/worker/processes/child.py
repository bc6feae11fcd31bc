"""One child process, from the worker's side: start it, exchange messages, kill it with all processes it has started.

Invariant: a signal is never sent to a process group whose number may have been reused. The watcher thread kills the
rest of the group while its leader is dead but not yet reaped, so that the number is still taken.

A handler may fork, as ``multiprocessing`` does. A forked copy that survives the worker would keep the worker's ends of
the sockets and pipes open, and neither the children nor the reaper would notice that the worker is dead. So the copy
replaces them (``close_on_fork``, ``keep_on_fork``).
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

_held: dict[int, tuple[int, int]] = {}


def close_on_fork(number: int) -> None:
    """Close this file descriptor in forked copies of the worker. A file that has its number later is kept: asyncio
    closes the socket of a dead child by itself."""
    _held[number] = _identity(number)


def keep_on_fork(number: int) -> None:
    _held.pop(number, None)


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


def _replace_held() -> None:
    """In the forked copy, replace the files by ``/dev/null``. The numbers stay taken, so that code that closes them
    does not close another file."""
    if not _held:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for number, identity in _held.items():
        with contextlib.suppress(OSError):  # it is closed
            if _identity(number) == identity:
                os.dup2(null, number, inheritable=False)
    os.close(null)
    _held.clear()


os.register_at_fork(after_in_child=_replace_held)


# Seconds to wait for the last message of a dead process, or for the end of a process that has closed its socket.
AFTERMATH = 1.0


STRAY = "the process wrote foreign data to its connection, and was killed"


class ChildDied(Exception):
    """The child ended, or closed its socket, before it responded."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a child is started: the command, to which the number of its socket is appended, and the first message.

    Children with equal recipes are interchangeable.
    """

    command: tuple[str, ...]
    hello: str


class Child:
    """Belongs to the event loop on which it was started, and must be started on that loop's thread: on Linux a child
    dies with the *thread* that started it."""

    def __init__(self, recipe: Recipe, reaper: Reaper) -> None:
        self.recipe = recipe
        self.jobs = 0
        self.knows: set[str] = set()
        ours, theirs = socket.socketpair()
        self._socket = ours
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
        self._reaper = reaper
        close_on_fork(ours.fileno())
        try:
            reaper.watch(self.pid)
        except OSError:  # no child may run that the reaper does not know
            self._process.kill()
            self._process.wait()
            keep_on_fork(ours.fileno())
            ours.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._lock = threading.Lock()
        self._exit_code_known = True
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._response: asyncio.Task[Message] | None = None
        threading.Thread(target=self._watch, name=f"holdfast-child-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    # --- messages ---

    async def ask(self, message: Message) -> Message:
        """Send a message and return the response, or raise ``ChildDied``. After a cancellation the caller may still
        await ``answer``, or kill the child."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        assert self._reader is not None
        self._response = asyncio.create_task(receive(self._reader))
        with contextlib.suppress(ConnectionError):  # ``answer`` reports it
            self._writer.write(frame(message))
            await self._writer.drain()
        return await self.answer()

    async def answer(self) -> Message:
        """The response to the last message, or ``ChildDied``."""
        assert self._response is not None
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({self._response, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not self._response.done():
                await asyncio.wait({self._response}, timeout=AFTERMATH)
        finally:
            ended.cancel()
        if self._response.done() and self._response.exception() is None:
            return self._response.result()
        if not await self.gone(AFTERMATH):
            self.kill()
            await self.gone(AFTERMATH)
        raise ChildDied(STRAY if isinstance(self._response.exception(), Garbled) else self._how())

    # --- ending ---

    def send_signal(self, number: int) -> None:
        """Send a signal to the whole group: the child and the processes it has started."""
        with self._lock:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def gone(self, timeout: float) -> bool:
        """Wait for its end, at most this long. Returns whether it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        return not self.alive

    async def leave(self, timeout: float = 2.0) -> None:
        """Let an idle child clean up and end; kill it if that takes too long."""
        if self._writer is not None and self.alive:
            with contextlib.suppress(ConnectionError):
                self._writer.write(frame({"end": True}))
                await self._writer.drain()
            await self.gone(timeout)
        await self.discard()

    async def discard(self) -> None:
        """Kill it and close its socket."""
        self.kill()
        await self.gone(AFTERMATH)
        if self._response is not None:
            self._response.cancel()
            await asyncio.wait({self._response})
        keep_on_fork(self._socket.fileno())
        if self._writer is None:
            self._socket.close()
        else:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    def _watch(self) -> None:
        """Wait for the child's end, in a thread. Only this thread reaps the child."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # other code has reaped it: for a moment the number may be reused
            self._exit_code_known = False
        except AttributeError:  # a system without waitid has the same gap
            self._process.wait()
        with self._lock:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._is_gone)

    def _is_gone(self) -> None:
        self._ended.set()
        self._reaper.forget(self.pid)

    def _how(self) -> str:
        code = self._process.returncode
        if not self._exit_code_known:
            return "the process has ended, and its exit code is unknown (SIGCHLD is ignored, or a handler waits for it)"
        if code is None:
            return "the process closed its connection and would not end"
        if code >= 0:
            return f"the process ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        return f"the process was killed by signal {-code} ({name})"
