"""Only the stores, and code that chooses or shows one, name a database."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.req("ARCH")

PACKAGE = Path(__file__).parents[2] / "src" / "holdfast"
ALLOWED = {"stores", "config.py", "cli", "integrations", "testing"}
ALLOWED_FILES = {"commands.py", "store.py", "snapshot.py", "sqlite.py", "sqlite_purge.py"}
"""Files of a feature that may name a database: its commands and its store operations."""
ASSEMBLY = {PACKAGE / "features" / name for name in ("assembly.py", "postgres.py", "sqlite.py")}
WORDS = re.compile(r"sqlite|postgres", re.IGNORECASE)


def sources() -> list[Path]:
    paths = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    outside = [path for path in paths if path.relative_to(PACKAGE).parts[0] not in ALLOWED]
    return sorted(
        path
        for path in outside
        if path not in ASSEMBLY and not (path.parent.parent.name == "features" and _is_store_file(path.name))
    )


def _is_store_file(name: str) -> bool:
    return name in ALLOWED_FILES or name.endswith(".sql")


def test_database_names_stay_in_their_layers() -> None:
    if not PACKAGE.is_dir():
        pytest.skip("no source tree")
    names = []
    for path in sources():
        text = path.read_text(encoding="utf-8", errors="ignore")
        for number, line in enumerate(text.splitlines(), start=1):
            if WORDS.search(line):
                names.append(f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}")
    assert not names, "\n".join(names)
