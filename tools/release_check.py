"""Check whether this tree can be released: `make release-check`, with a tag `make release-check ARGS="--tag v0.1.0"`.

1. The version is the same in pyproject.toml, `holdfast.__version__`, the TypeScript client and the newest entry of
   CHANGELOG.md. With a tag, it is the version of the tag, and the entry has a date.
2. The generated reference pages are current.
3. The sdist and the wheel are built from a clean dist/, have the required files, and pass `twine check`.
4. Wheel and sdist install into an empty environment of every Python from 3.11 to 3.13 that is found, and run a job;
   with the extra `cli`, the command line, the demo (which kills a worker) and the tutorial work.
5. The size of the wheel and the time of `import holdfast` and `holdfast --version` are printed.
6. A bill of materials is written to dist/sbom.json.
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
import time
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


NPM = {"a": "alpha", "b": "beta", "rc": "rc"}
PYTHONS = ("3.11", "3.12", "3.13")


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


def npm_version(version: str) -> str:
    """The version as npm writes it: 0.2.0rc1 is 0.2.0-rc.1."""
    return re.sub(r"(\d)(a|b|rc)(\d+)$", lambda found: f"{found[1]}-{NPM[found[2]]}.{found[3]}", version)


def check_version(tag: str | None) -> str:
    version = project_version()
    source = (ROOT / "src/holdfast/engine/version.py").read_text(encoding="utf-8")
    client = json.loads((ROOT / "clients/typescript/package.json").read_text(encoding="utf-8"))["version"]
    entry = re.search(r"^## \[(.+?)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    if f'__version__ = "{version}"' not in source:
        raise Problem(f"holdfast.__version__ is not {version}")
    if client != npm_version(version):
        raise Problem(f"clients/typescript/package.json has {client}, not {npm_version(version)}")
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


def pythons() -> dict[str, str]:
    """The interpreters that are found, by version; at least the current one."""
    found: dict[str, str] = {}
    for wanted in PYTHONS:
        for name in (sys.executable, f"python{wanted}"):
            path = shutil.which(name)
            script = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
            done = None if path is None else subprocess.run([path, "-c", script], capture_output=True, text=True)
            if done is not None and done.returncode == 0 and done.stdout.split()[0] == wanted:
                found[wanted] = done.stdout.split(maxsplit=1)[1].strip()
                break
    return found


def install(version: str) -> None:
    for number, python in pythons().items():
        for package in (wheel(version), DIST / f"holdfast-{version}.tar.gz"):
            with tempfile.TemporaryDirectory() as folder:
                try_package(version, python, package, Path(folder))
            print(f"    Python {number}: {package.name}")
    if missing := sorted(set(PYTHONS) - pythons().keys()):
        print(f"    not found, not tried: Python {', '.join(missing)}")


def try_package(version: str, python: str, package: Path, folder: Path) -> None:
    run(python, "-m", "venv", folder / "env")
    here, env = folder / "work", folder / "env" / "bin"
    here.mkdir()
    run(env / "python", "-m", "pip", "install", "--quiet", package)
    output = run(env / "python", "-c", SMOKE, cwd=here)
    if version not in output:
        raise Problem(f"{package.name} has another version: {output.strip()}")
    if package.suffix == ".whl" and python == pythons().get(PYTHONS[0], python):
        measure(package, env, here)
    run(env / "python", "-m", "pip", "install", "--quiet", f"{package}[cli]")
    command = env / "holdfast"
    if version not in run(command, "--version", cwd=here):
        raise Problem("holdfast --version prints another version")
    run(command, "enqueue", "hello", "{}", "--url", "sqlite:///smoke.db", cwd=here)
    jobs = json.loads(run(command, "jobs", "list", "--json", "--url", "sqlite:///smoke.db", cwd=here))
    if len(jobs) != 2 and len(jobs.get("items", [])) != 2:
        raise Problem(f"two jobs were enqueued, but the command line lists {jobs}")
    if not json.loads(run(command, "demo", "--jobs", "200", "--json", cwd=here)):
        raise Problem("the demo printed nothing")
    tutorial(env, here)


def tutorial(env: Path, here: Path) -> None:
    """The first part of docs/tutorial.md: two jobs, of which one fails three times."""
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    receipts, first = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[:2]
    (here / "receipts.py").write_text(receipts, encoding="utf-8")
    (here / "first.py").write_text(first, encoding="utf-8")
    url = ("env", "HOLDFAST_URL=sqlite:///jobs.db")
    run(*url, env / "python", "first.py", cwd=here)
    states: set[str] = set()
    for _ in range(60):
        run(*url, env / "holdfast", "worker", "receipts:app", "--burst", cwd=here)
        listed = json.loads(run(*url, env / "holdfast", "jobs", "list", "--json", cwd=here))
        states = {job["state"] for job in (listed if isinstance(listed, list) else listed["items"])}
        if states == {"succeeded", "dead_letter"}:
            return
        time.sleep(0.5)
    raise Problem(f"the jobs of the tutorial are {', '.join(sorted(states))}")


def measure(package: Path, env: Path, here: Path) -> None:
    """Print what a user pays for the core alone, in processor time, the least of several runs."""
    timer = (
        "import resource, subprocess, sys\n"
        "def used():\n"
        "    spent = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "    return spent.ru_utime + spent.ru_stime\n"
        "def least(*command):\n"
        "    times = []\n"
        "    for _ in range(9):\n"
        "        before = used()\n"
        "        subprocess.run(command, check=True, capture_output=True)\n"
        "        times.append(used() - before)\n"
        "    return min(times)\n"
        'print(f\'{least(sys.executable, "-c", "import holdfast"):.2f}\')\n'
    )
    seconds = run(env / "python", "-c", timer, cwd=here).strip()
    print(f"    the core: {package.stat().st_size / 1024:.0f} KiB, import holdfast {seconds} s of processor time")


def bill_of_materials(_: str) -> None:
    run(sys.executable, "requirements/lock.py", "sbom", "dist/sbom.json")


def wheel(version: str) -> Path:
    return DIST / f"holdfast-{version}-py3-none-any.whl"


STEPS: dict[str, Callable[[str], None]] = {
    "the reference is current": check_reference,
    "sdist and wheel are built, complete and well-formed": build,
    "wheel and sdist work in empty environments": install,
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
