"""New files are accessible only to their owner, whatever the umask. Existing files keep their mode."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast
from holdfast import App, SyncContext
from holdfast.cli.commands import app as command_line
from holdfast.features.assembly import open_store
from holdfast.features.audit.operations import Audit
from holdfast.features.connectors.program_files import create_directory
from holdfast.features.connectors.report import Document
from holdfast.stores.artifacts import Directory
from tests.support.stores import claim, open_lease, put_one, settle
from tests.support.workers import work_off

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


def test_saved_artifact_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ARTIFACTS", str(tmp_path / "artifacts"))
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/jobs.db")
    with closing(App()) as app:

        @app.job()
        def export(ctx: SyncContext) -> None:
            ctx.artifact("out.csv", data=b"secret")

        job = export.enqueue().id
        work_off(app)
    output = tmp_path / "out.csv"
    written = CliRunner().invoke(command_line, ["jobs", "artifact", job, "out.csv", "--output", str(output)])
    assert (written.exit_code, output.read_bytes()) == (0, b"secret")
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_reports_and_programs_write_private_files(tmp_path: Path) -> None:
    document = Document(tmp_path / "report")
    document.write(iter(["a,b"]))
    assert modes(tmp_path) == {"report": 0o600}
    with closing(open_store(f"sqlite:///{tmp_path}/jobs.db")) as store:
        store.migrate()
        put_one(store)
        (claimed,) = claim(store, open_lease(store))
    create_directory(tmp_path / "new" / "logs", claimed, create_parent=True)
    assert {mode for path, mode in modes(tmp_path).items() if path.startswith("new")} == {0o700, 0o600}
    assert modes(tmp_path)["new"] == 0o700


# --- the source ---

SOURCE = Path(holdfast.__file__).parent
CREATORS = {
    "stores/host_files.py",
    "features/connectors/program_shim.py",  # imports only the standard library; opens its log for its owner only
}
WRITING = {"write_bytes", "write_text", "touch", "mkdir", "makedirs", "mkfifo", "mknod", "symlink_to", "hardlink_to"}
WRITING |= {"copy", "copy2", "copyfile", "copytree", "FileHandler", "RotatingFileHandler", "TimedRotatingFileHandler"}


def creations(tree: ast.AST) -> Iterator[int]:
    """The lines that create a file or a folder. Those of `tempfile` are for their owner only."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rsplit(".", 1)[-1]
        if name in {"copy", "copy2"} and not called.startswith("shutil."):
            continue
        given = [ast.unparse(each) for each in (*node.args, *(keyword.value for keyword in node.keywords))]
        if called in {"os.open"}:
            writes = any("O_CREAT" in each for each in given)
        elif name in {"open", "fdopen"}:
            modes_given = [
                each.value
                for each in (*node.args, *(keyword.value for keyword in node.keywords))
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            # os.fdopen and open(handle) of something opened before create nothing.
            writes = called != "os.fdopen" and any(
                len(each) <= 3 and set(each) & set("wax+") and set(each) <= set("wax+bt") for each in modes_given
            )
        else:
            writes = name in WRITING
        if writes:
            yield node.lineno


@pytest.mark.parametrize("umask", [0o022], indirect=True)  # it reads the source only
@pytest.mark.parametrize(
    "statement",
    [
        "open(path, 'w')",
        "path.open('ab')",
        "Path(path).open(mode='x')",
        "path.write_bytes(b'')",
        "os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)",
        "folder.mkdir()",
        "shutil.copyfile(a, b)",
    ],
)
def test_creations_are_found(statement: str) -> None:
    assert list(creations(ast.parse(statement))) == [1]


@pytest.mark.parametrize("umask", [0o022], indirect=True)  # it reads the source only
def test_only_two_modules_create_files() -> None:
    """Create files and folders with stores/host_files.py."""
    found = {
        f"{name}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := str(path.relative_to(SOURCE))) not in CREATORS
        for line in creations(ast.parse(path.read_text()))
    }
    assert found == set()
