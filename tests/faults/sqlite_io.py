"""Counts the reads, writes and syncs of SQLite in this process, and fails the n-th of them.

SQLite's own VFS opens the files; their methods are replaced by a copy whose reads, writes, truncations and syncs pass
through here. The log and the database are files of that VFS, the index of the log is mapped memory.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

Operation = Literal["read", "write", "sync"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
Lasting = Literal["once", "torn", "from then on"]
"""``torn``: half of a write arrives, then it fails."""

_CODES: dict[Operation, int] = {"read": 266, "write": 778, "sync": 1034}  # SQLITE_IOERR_READ, _WRITE, _FSYNC

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_Transfer = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _LONG)
_Truncate = ctypes.CFUNCTYPE(_INT, _POINTER, _LONG)
_Sync = ctypes.CFUNCTYPE(_INT, _POINTER, _INT)
# The name is not converted: SQLite keeps the pointer as long as the file is open.
_Open = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _POINTER, _INT, ctypes.POINTER(_INT))


class _Methods(ctypes.Structure):
    """The struct `sqlite3_io_methods`."""

    _fields_ = (
        ("version", _INT),
        ("close", _POINTER),
        ("read", _Transfer),
        ("write", _Transfer),
        ("truncate", _Truncate),
        ("sync", _Sync),
        *((f"unused{n}", _POINTER) for n in range(13)),
    )


class _File(ctypes.Structure):
    """The struct `sqlite3_file`."""

    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


class _Vfs(ctypes.Structure):
    """The struct `sqlite3_vfs`."""

    _fields_ = (
        *((name, _INT) for name in ("version", "size", "longest")),
        *((name, _POINTER) for name in ("next", "name", "data")),
        ("open", _Open),
    )


class Disk:
    """The operations so far, and the one that fails."""

    def __init__(self) -> None:
        self.operations: Counter[Operation] = Counter()
        self.failed = 0
        self._guard = threading.Lock()
        self._fault: tuple[Operation, int, Lasting] | None = None

    def fail(self, operation: Operation, number: int, lasting: Lasting) -> None:
        """Fail the operation with this number, counted from 1 since the disk was watched."""
        self._fault = (operation, number, lasting)

    def repair(self) -> None:
        self._fault = None

    def fails(self, operation: Operation) -> Lasting | None:
        with self._guard:
            self.operations[operation] += 1
            if self._fault is None or self._fault[0] != operation:
                return None
            _, number, lasting = self._fault
            count = self.operations[operation]
            if count == number or (count > number and lasting == "from then on"):
                self.failed += 1
                return lasting
        return None


class _Interposed:
    """The methods of files of one kind, with reads, writes, truncations and syncs of the disk's choice failing."""

    def __init__(self, disk: Disk, original: _Methods) -> None:
        self.methods = _Methods.from_buffer_copy(original)
        self.address = ctypes.addressof(self.methods)
        read, write, truncate, sync = original.read, original.write, original.truncate, original.sync

        def reads(file: int, into: int, size: int, at: int) -> int:
            return _CODES["read"] if disk.fails("read") else int(read(file, into, size, at))

        def writes(file: int, data: int, size: int, at: int) -> int:
            lasting = disk.fails("write")
            if lasting == "torn":
                write(file, data, size // 2, at)
            return _CODES["write"] if lasting else int(write(file, data, size, at))

        def truncates(file: int, size: int) -> int:
            return _CODES["write"] if disk.fails("write") else int(truncate(file, size))

        def syncs(file: int, flags: int) -> int:
            return _CODES["sync"] if disk.fails("sync") else int(sync(file, flags))

        self.methods.read, self.methods.write = _Transfer(reads), _Transfer(writes)
        self.methods.truncate, self.methods.sync = _Truncate(truncates), _Sync(syncs)


_kept: list[Any] = []  # a file that is closed late still calls the methods it was opened with


@contextmanager
def watched_disk() -> Iterator[Disk]:
    """Count the operations on all files that SQLite opens in the block."""
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs, disk = library.sqlite3_vfs_find(None).contents, Disk()
    original = _Open.from_buffer_copy(vfs.open)
    interposed: dict[int, _Interposed] = {}

    def opens(this: int, name: int | None, file: int, flags: int, out: Any) -> int:
        code = int(original(this, name, file, flags, out))
        methods = _File.from_address(file).methods
        if code == 0 and methods:
            address = ctypes.addressof(methods.contents)
            if address not in interposed:
                interposed[address] = _Interposed(disk, methods.contents)
            _File.from_address(file).methods = ctypes.pointer(interposed[address].methods)
        return code

    hook = _Open(opens)
    _kept.extend((interposed, hook))
    vfs.open = hook
    try:
        yield disk
    finally:
        disk.repair()
        vfs.open = original
