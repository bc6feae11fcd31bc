"""The PostgreSQL that Debian and Ubuntu package: built with LLVM, and `jit = on` as it comes.

The servers from the wheel have no LLVM, so nothing that depends on JIT shows up on them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.binaries import debian_bin
from tests.support.servers import PostgresServer

MISSING = "no PostgreSQL server with LLVM is installed (Debian: apt-get install postgresql)"


class DebianServer(PostgresServer):
    """Stock settings but for where it listens, and those given."""

    def __init__(self, *, in_memory: bool = False, settings: Mapping[str, str] | None = None) -> None:
        programs = debian_bin()
        if programs is None:
            raise RuntimeError(MISSING)
        super().__init__(programs=programs, in_memory=in_memory, settings=settings)
        self._settings = {"listen_addresses": "127.0.0.1", **(settings or {})}
