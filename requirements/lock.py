"""What we run on (rule 31), from the lock alone and so without a network.

python requirements/lock.py check          every entry pinned and hashed, and what is installed is what is locked
python requirements/lock.py sbom FILE      a bill of materials, CycloneDX 1.5
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LOCK = Path(__file__).parent / "dev.txt"
ENTRY = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(\S+?)(?:\s*;[^\\]*)?\s*\\?$")


Locked = dict[tuple[str, str], list[str]]
"""Names and versions with their hashes. Some are there twice, for different Pythons."""


def locked(text: str) -> Locked:
    found: Locked = {}
    last: list[str] = []
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry is not None:
            last = found[entry.group(1), entry.group(2)] = []
        elif "--hash=" in line:
            last.extend(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
        elif line and not line.startswith((" ", "#")):
            raise SystemExit(f"not pinned: {line}")
    return found


def problems(packages: Locked) -> list[str]:
    found = [f"{name} has no hash" for (name, _), hashes in packages.items() if not hashes]
    for name in sorted({name for name, _ in packages}):
        try:
            there = version(name)
        except PackageNotFoundError:  # for another platform or another Python
            continue
        if (name, there) not in packages:
            found.append(f"{name} {there} is installed, and is not locked")
    return found


def bill(packages: Locked) -> dict[str, object]:
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": "holdfast", "version": version("holdfast")}},
        "components": [
            {
                "type": "library",
                "name": name,
                "version": number,
                "purl": f"pkg:pypi/{name.lower()}@{number}",
                "hashes": [{"alg": "SHA-256", "content": each} for each in hashes],
            }
            for (name, number), hashes in packages.items()
        ],
    }


def main(arguments: list[str]) -> int:
    packages = locked(LOCK.read_text(encoding="utf-8"))
    if arguments[:1] == ["sbom"]:
        Path(arguments[1]).parent.mkdir(exist_ok=True)
        Path(arguments[1]).write_text(json.dumps(bill(packages), indent=2) + "\n", encoding="utf-8")
        print(f"{len(packages)} components written to {arguments[1]}")
        return 0
    found = problems(packages)
    print("\n".join(found) or f"{len(packages)} packages, all pinned and hashed; what is installed is what is locked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
