"""A forked copy of a worker closes the worker's ends of its children's sockets, and no other file."""

from __future__ import annotations

import os
import socket

import pytest

from holdfast.worker.processes.child import close_on_fork, keep_on_fork
from tests.support.concurrency import in_a_fork

pytestmark = pytest.mark.req("CX-15")


def test_forked_copy_closes_the_end_of_the_worker() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        close_on_fork(ours.fileno())
        assert in_a_fork(lambda: os.path.samestat(os.fstat(ours.fileno()), os.stat(os.devnull)))
        keep_on_fork(ours.fileno())
        assert not in_a_fork(lambda: os.path.samestat(os.fstat(ours.fileno()), os.stat(os.devnull)))


def test_forked_copy_keeps_a_file_that_has_the_number_of_a_closed_one() -> None:
    """The socket of a dead child is closed by asyncio, and its number is given to the next file."""
    ours, theirs = socket.socketpair()
    number = ours.fileno()
    close_on_fork(number)
    reading, writing = os.pipe()
    ours.close()
    with theirs, open(reading, "rb") as pipe:
        os.dup2(writing, number)
        os.close(writing)
        assert in_a_fork(lambda: os.write(number, b"written")) == 7
        os.close(number)
        assert pipe.read() == b"written"
    keep_on_fork(number)
