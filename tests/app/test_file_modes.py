"""New files are accessible only to their owner, whatever the umask. Existing files keep their mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App
from holdfast.features.assembly import open_store
from holdfast.features.audit.operations import Audit
from holdfast.stores.artifacts import Directory
from tests.support.stores import claim, open_lease, put_one, settle

pytestmark = pytest.mark.req("DP-17")


@pytest.fixture(autouse=True, params=[0o022, 0o000, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in sorted(folder.rglob("*"))}


def use(url: str) -> None:
    with closing(open_store(url)) as store:
        store.migrate()
        put_one(store)
        settle(store, claim(store, open_lease(store)))


def test_new_database_is_private(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with closing(open_store(url)) as held:
        held.migrate()
        put_one(held)
        mode_of = modes(tmp_path)
        assert {"jobs.db", "jobs.db-wal", "jobs.db-shm"} <= mode_of.keys()
        assert set(mode_of.values()) == {0o600}
        (finding,) = [each for each in held.diagnose() if each.name == "file mode"]
        assert finding.ok


def test_group_database_stays_shared_with_its_group(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o660)
    with closing(open_store(f"sqlite:///{path}")) as held:
        held.migrate()
        put_one(held)
        assert {modes(tmp_path)[f"jobs.db{suffix}"] for suffix in ("", "-wal", "-shm")} == {0o660}
        (finding,) = [each for each in held.diagnose() if each.name == "file mode"]
        assert finding.ok
        assert "group" in finding.says


def test_doctor_reports_a_world_readable_database(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o644)
    with closing(open_store(f"sqlite:///{path}")) as held:
        held.migrate()
        (finding,) = [each for each in held.diagnose() if each.name == "file mode"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "the mode of an existing file is not changed"
    assert not finding.ok
    assert finding.fix is not None
    assert "chmod o=" in finding.fix


def test_new_artifacts_are_private(tmp_path: Path) -> None:
    Directory(tmp_path / "new" / "artifacts").put("acme/job/" + "a" * 64, b"secret")
    mode_of = modes(tmp_path)
    assert {mode for path, mode in mode_of.items() if not path.endswith("a" * 64)} == {0o700}
    assert {mode for path, mode in mode_of.items() if path.endswith("a" * 64)} == {0o600}


def test_artifacts_of_a_group_directory_stay_shared(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(0o770)
    Directory(root).put("acme/job/" + "a" * 64, b"for us")
    mode_of = modes(root)
    assert {mode for path, mode in mode_of.items() if not path.endswith("a" * 64)} == {0o770}
    assert {mode for path, mode in mode_of.items() if path.endswith("a" * 64)} == {0o660}


def test_ledger_export_is_private(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    use(url)
    with closing(App(url)) as app:
        app.audit.seal()
        assert isinstance(app.audit, Audit)
        app.audit.export(tmp_path / "ledger.jsonl")
    assert modes(tmp_path)["ledger.jsonl"] == 0o600
