"""Properties of a release: versions agree, and extras are independent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.release_check import ROOT, Problem, check_version, project_version

pytestmark = pytest.mark.req("JF-17")


@pytest.mark.skipif(not (ROOT / "CHANGELOG.md").is_file(), reason="not a checkout")
def test_versions_agree() -> None:
    assert check_version(None) == project_version()
    with pytest.raises(Problem, match="the tag is"):
        check_version("v9.9.9")


def test_command_line_needs_only_its_extra() -> None:
    absent = "starlette", "fastapi", "uvicorn", "jinja2", "httpx2", "psycopg", "pydantic"
    program = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in absent)
    program += "from holdfast.cli.commands import app\nprint('imported')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "imported\n", done.stderr
