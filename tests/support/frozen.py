"""A released Holdfast, unpacked from its frozen wheel in `tests/releases`, and its programs.

The wheel comes first on the import path of a process; the dependencies are those of this environment.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast import config
from holdfast.engine.version import __version__

ROOT = Path(__file__).parents[2]
RELEASES = ROOT / "tests" / "releases"


@dataclass(frozen=True)
class Frozen:
    version: str
    folder: Path

    @property
    def import_path(self) -> str:
        """`PYTHONPATH` for a process of this release that also imports modules of the tests."""
        return os.pathsep.join([str(self.folder), str(ROOT)])

    def environment(self, url: str | None = None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        named = {} if url is None else {config.URL_VARIABLE: url}
        return clean | named | {"PYTHONPATH": self.import_path} | dict(extra or {})

    def run(self, *arguments: str, url: str | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run `python` with these arguments in this release."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment(url, extra),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    @contextmanager
    def start(self, *arguments: str, url: str, log: Path, **extra: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start `python` with these arguments in this release; the process is killed at the end if it still runs."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=log.parent,
                env=self.environment(url, extra),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def migrate(self, url: str) -> str:
        """Create or upgrade the schema; return what the command reports."""
        return self.run("-m", "holdfast", "migrate", url=url).stderr

    def texts(self) -> Iterator[str]:
        """Every string in the Python code of this release; of an f-string its constant parts, joined by NUL."""
        for path in sorted((self.folder / "holdfast").rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            parts: set[int] = set()
            for node in ast.walk(tree):  # an f-string comes before its parts
                if isinstance(node, ast.JoinedStr):
                    parts |= {id(part) for part in node.values}
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                    yield node.value


@pytest.fixture(scope="session")
def previous_release(tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    """The newest frozen release."""
    wheel = max(RELEASES.glob("holdfast-*.whl"), key=_number)
    folder = tmp_path_factory.mktemp(f"release-{_version(wheel)}")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    release = Frozen(_version(wheel), folder)
    where = release.run("-c", "import holdfast; print(holdfast.__version__, holdfast.__file__)")
    assert where.stdout.split() == [release.version, str(folder / "holdfast" / "__init__.py")]
    return release


def this_release() -> Frozen:
    """The release of this tree, with the same methods."""
    return Frozen(__version__, ROOT / "src")


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def _number(wheel: Path) -> tuple[int, ...]:
    return tuple(map(int, _version(wheel).split(".")))
