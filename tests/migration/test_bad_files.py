"""Invalid locations of a SQLite database, and the errors for them."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError, InvalidSetting, StoreUnavailable
from holdfast.features.assembly import Store, open_store
from holdfast.stores.sqlite.connections import database_path, refuse_network_file_system
from tests.support.concurrency import in_a_fork

pytestmark = pytest.mark.req("SC-1")

USES: dict[str, Callable[[Store], object]] = {
    "migrate": lambda store: store.migrate(),
    "schema": lambda store: store.schema(),
    "diagnose": lambda store: store.diagnose(),
    "run": lambda store: store.run(store.jobs.counts("default")),
}
every_use = pytest.mark.parametrize("use", USES.values(), ids=USES.keys())


@every_use
def test_file_that_is_no_database_is_refused(tmp_path: Path, use: Callable[[Store], object]) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(b"this is a letter, not a database\n" * 100)
    with closing(open_store(f"sqlite:///{path}")) as store:
        with pytest.raises(StoreUnavailable) as refused:
            use(store)
        assert refused.value.code == "not_a_database"
    assert path.read_bytes().startswith(b"this is a letter"), "the file must not change"


@every_use
def test_directory_is_refused(tmp_path: Path, use: Callable[[Store], object]) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}")) as store, pytest.raises(StoreUnavailable) as refused:
        use(store)
    assert str(tmp_path) in str(refused.value)


@every_use
def test_missing_folder_is_refused(tmp_path: Path, use: Callable[[Store], object]) -> None:
    path = tmp_path / "nowhere" / "jobs.db"
    with closing(open_store(f"sqlite:///{path}")) as store, pytest.raises(StoreUnavailable) as refused:
        use(store)
    assert str(path) in str(refused.value)
    assert not path.parent.exists()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that other users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_file_without_write_permission_is_refused(open_folder: Path) -> None:
    folder = open_folder / "closed"
    folder.mkdir()
    url = f"sqlite:///{folder}/jobs.db"
    with closing(open_store(url)) as store:
        store.migrate()
    (folder / "jobs.db").chmod(0o444)
    folder.chmod(0o555)

    def write() -> str:
        if os.geteuid() == 0:  # root ignores permissions
            os.setresuid(65534, 65534, 65534)
        with closing(open_store(url)) as store:
            try:
                store.run(store.leases.open("worker", 30.0, "default"))
            except HoldfastError as error:
                return f"{type(error).__name__} {error.code}: {error.message}"
        return "written"

    try:
        outcome = in_a_fork(write)
    finally:
        folder.chmod(0o755)
    assert outcome.startswith("StoreUnavailable store_unavailable: ")
    assert any(word in outcome for word in ("readonly", "cannot open", "unable to open"))


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:////", "sqlite://jobs.db", "sqlite:jobs.db"])
def test_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        open_store(url)
    assert refused.value.code == "invalid_url"


def test_three_slashes_are_relative_and_four_are_absolute() -> None:
    assert database_path("sqlite:///jobs.db") == "jobs.db"
    assert database_path("sqlite:////var/lib/jobs.db") == "/var/lib/jobs.db"
    assert database_path("sqlite:///jobs.db?mode=x") == "jobs.db"
    assert database_path("sqlite:///:memory:") == ":memory:"


def test_migration_turns_on_wal_mode(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as plain:
        plain.execute("create table mine (n integer)")
    with closing(open_store(f"sqlite:///{tmp_path}/jobs.db")) as store:
        assert store.migrate().current
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as plain:
        assert plain.execute("pragma journal_mode").fetchone() == ("wal",)
        assert plain.execute("select count(*) from mine").fetchone() == (0,)


# -- network file systems ----------------------------------------------------------------------------------------

MOUNTS = """\
/dev/root / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/export /mnt/share nfs4 rw,vers=4.2 0 0
/dev/sdb1 /mnt/share/local ext4 rw 0 0
//server/disk /mnt/two\\040words cifs rw 0 0
user@host: /mnt/ssh fuse.sshfs rw 0 0
gluster:/volume /mnt/gluster fuse.glusterfs rw 0 0
tmpfs /mnt/share2 tmpfs rw 0 0
broken line
"""


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/var/lib/jobs.db", None),
        ("/mnt/share/jobs.db", "nfs4 at /mnt/share"),
        ("/mnt/share/deep/down/jobs.db", "nfs4 at /mnt/share"),
        ("/mnt/share/local/jobs.db", None),
        ("/mnt/share2/jobs.db", None),
        ("/mnt/two words/jobs.db", "cifs at /mnt/two words"),
        ("/mnt/ssh/jobs.db", "fuse.sshfs"),
        ("/mnt/gluster/jobs.db", "fuse.glusterfs"),
        ("/mnt/share/local/../jobs.db", "nfs4 at /mnt/share"),
    ],
)
def test_network_file_system_is_refused(tmp_path: Path, path: str, refused: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    if refused is None:
        refuse_network_file_system(Path(path), mounts)
        return
    with pytest.raises(InvalidSetting, match=refused) as caught:
        refuse_network_file_system(Path(path), mounts)
    assert caught.value.code == "network_file_system"
    assert "PostgreSQL" in str(caught.value)


def test_link_into_a_network_file_system_is_refused(tmp_path: Path) -> None:
    far, mounts = tmp_path / "far", tmp_path / "mounts"
    far.mkdir()
    (tmp_path / "near").symlink_to(far)
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/x {far} nfs rw 0 0\n")
    with pytest.raises(InvalidSetting):
        refuse_network_file_system(tmp_path / "near" / "jobs.db", mounts)


def test_missing_mount_table_refuses_nothing(tmp_path: Path) -> None:
    refuse_network_file_system(Path("/mnt/share/jobs.db"), tmp_path / "none")
