"""Check whether this tree can be released: `make release-check`, with a tag `make release-check ARGS="--tag v0.1.0"`.

1. The version is the same in pyproject.toml, `holdfast.__version__`, the TypeScript client and the newest entry of
   CHANGELOG.md. With a tag, it is the version of the tag, and the entry has a date.
2. The generated reference pages are current.
3. The sdist and the wheel are built from a clean dist/, have the required files, and pass `twine check`.
4. The wheel installs into an empty environment and runs a job; with the extra `cli`, the command line works.
5. A bill of materials is written to dist/sbom.json.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
WHEEL_HAS = (
    "holdfast/py.typed",
    "holdfast/stores/postgres/migrations/0001_initial.sql",
    "holdfast/stores/sqlite/migrations/0001_initial.sql",
    "_holdfast_pytest.py",
)
SDIST_HAS = (
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "pyproject.toml",
    "src/holdfast/__init__.py",
    "requirements/dev.txt",
)
SMOKE = """
import holdfast
app = holdfast.App("sqlite:///smoke.db")

@app.job
def add(one: int, two: int) -> int:
    return one + two

handle = add.enqueue(one=1, two=2)
assert app.tick().succeeded == 1
assert handle.result() == 3
app.close()
print("core:", holdfast.__version__)
"""


class Problem(Exception):
    """A reason not to release."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem(f"{' '.join(str(part) for part in command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def project_version() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def check_version(tag: str | None) -> str:
    version = project_version()
    source = (ROOT / "src/holdfast/engine/version.py").read_text(encoding="utf-8")
    client = json.loads((ROOT / "clients/typescript/package.json").read_text(encoding="utf-8"))["version"]
    entry = re.search(r"^## \[(.+?)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if f'__version__ = "{version}"' not in source:
        raise Problem(f"holdfast.__version__ is not {version}")
    if client != version:
        raise Problem(f"clients/typescript/package.json has {client}, not {version}")
    if entry is None or entry.group(1) != version:
        raise Problem(f"the newest entry of CHANGELOG.md is not [{version}]")
    if tag is not None and tag != f"v{version}":
        raise Problem(f"the tag is {tag}, and the version {version}")
    if tag is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", entry.group(2)):
        raise Problem("the newest entry of CHANGELOG.md has no date")
    return version


def check_reference(_: str) -> None:
    run(sys.executable, "-m", "tools.reference")
    run(sys.executable, "-m", "tools.diagrams")


def build(version: str) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build")
    with zipfile.ZipFile(wheel(version)) as archive:
        missing = [name for name in WHEEL_HAS if name not in archive.namelist()]
    with tarfile.open(DIST / f"holdfast-{version}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        missing += [name for name in SDIST_HAS if name not in names]
    if missing:
        raise Problem(f"the packages lack {', '.join(missing)}")
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())


def install(version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        run(sys.executable, "-m", "venv", here / "env")
        python = here / "env" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", wheel(version))
        output = run(python, "-c", SMOKE, cwd=here)
        if version not in output:
            raise Problem(f"the wheel has another version: {output.strip()}")
        run(python, "-m", "pip", "install", "--quiet", f"{wheel(version)}[cli]")
        command = here / "env" / "bin" / "holdfast"
        if version not in run(command, "--version", cwd=here):
            raise Problem("holdfast --version prints another version")
        run(command, "enqueue", "hello", "{}", "--url", "sqlite:///smoke.db", cwd=here)
        jobs = json.loads(run(command, "jobs", "list", "--json", "--url", "sqlite:///smoke.db", cwd=here))
        if len(jobs) != 2 and len(jobs.get("items", [])) != 2:
            raise Problem(f"two jobs were enqueued, but the command line lists {jobs}")


def bill_of_materials(_: str) -> None:
    run(sys.executable, "requirements/lock.py", "sbom", "dist/sbom.json")


def wheel(version: str) -> Path:
    return DIST / f"holdfast-{version}-py3-none-any.whl"


STEPS: dict[str, Callable[[str], None]] = {
    "the reference is current": check_reference,
    "sdist and wheel are built, complete and well-formed": build,
    "the wheel works in an empty environment": install,
    "the bill of materials is written": bill_of_materials,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Check whether this tree can be released.")
    parser.add_argument("--tag", help="The tag to release, such as v0.1.0.")
    try:
        version = check_version(parser.parse_args().tag)
        print(f"ok  version {version} everywhere")
        for name, step in STEPS.items():
            step(version)
            print(f"ok  {name}")
    except Problem as problem:
        print(f"NOT READY: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
