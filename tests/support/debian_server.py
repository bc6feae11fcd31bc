"""The PostgreSQL that Debian and Ubuntu package: built with LLVM, and `jit = on` as it comes.

The servers from the wheel have no LLVM, so nothing that depends on JIT shows up on them. This one runs the newest
installation under /usr/lib/postgresql with its default settings, on a data directory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from tests.support.binaries import Account
from tests.support.servers import PostgresServer

INSTALLATIONS = Path("/usr/lib/postgresql")
MISSING = f"no PostgreSQL with LLVM under {INSTALLATIONS} (Debian: apt install postgresql)"


def newest_installation() -> Path | None:
    """The newest installed major version that has its JIT library."""
    found = [
        path
        for path in INSTALLATIONS.glob("*")
        if path.name.isdigit() and (path / "bin" / "initdb").is_file() and (path / "lib" / "llvmjit.so").is_file()
    ]
    return max(found, key=lambda path: int(path.name), default=None)


class DebianServer(PostgresServer):
    """Stock settings but for where it listens, and those given."""

    def __init__(self, *, in_memory: bool = False, settings: Mapping[str, str] | None = None) -> None:
        found = newest_installation()
        if found is None:
            raise RuntimeError(MISSING)
        super().__init__(int(found.name), in_memory=in_memory, settings=settings)
        self._installation = found
        self._settings = {"listen_addresses": "127.0.0.1", **(settings or {})}

    @override
    def _install_dir(self, account: Account, private_dir: Path) -> Path:
        return self._installation

    @override
    def _initdb_settings(self) -> list[str]:
        return []  # `--set` is not known before 16
