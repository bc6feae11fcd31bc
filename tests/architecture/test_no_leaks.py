"""No file reveals where it was made: no package index, no registry, no path of a machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.req("ARCH")

ROOT = Path(__file__).parents[2]

LEAKS = {
    "package index": re.compile(r"(?:index-url|find-links)[\s=]+[\"']?(?:http|file)|https?://[^\s\"'<>]+/simple\b"),
    "registry": re.compile(r"registry\s*=\s*[\"']?http|https?://registry\.|\"resolved\":\s*\"http"),
    "path of a machine": re.compile(r"(?<![\w.~$}-])/(?:home|root|work|Users)/"),
}


def project_files() -> list[Path]:
    """All files that are tracked, or would be after `git add`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("git is missing, or this is not a checkout")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def leaks_in(text: str) -> list[str]:
    return [
        f"{what}: {line.strip()[:120]}"
        for line in text.splitlines()
        for what, leak in LEAKS.items()
        if leak.search(line)
    ]


def test_no_file_reveals_where_it_was_made() -> None:
    leaks = []
    for path in project_files():
        content = path.read_bytes()
        if b"\0" in content:  # not text
            continue
        leaks += [f"{path.relative_to(ROOT)}: {leak}" for leak in leaks_in(content.decode(errors="replace"))]
    assert not leaks, "\n".join(leaks)


@pytest.mark.parametrize(
    "line",
    [
        "--index-" + "url https://packages.example.com/all",
        "extra-index-" + "url = file:///packages",
        'registry = "' + 'https://packages.example.com"',
        "https://packages.example.com/" + "simple/",
        "see /" + "home/ada/project",
        'path = "/' + 'work/main"',
    ],
)
def test_leak_is_detected(line: str) -> None:
    assert leaks_in(line)


@pytest.mark.parametrize(
    "line", ["https://example.com/" + "work/items", "src/holdfast/home/", "~/" + "work/x", "a simple line"]
)
def test_ordinary_text_is_not_a_leak(line: str) -> None:
    assert not leaks_in(line)
