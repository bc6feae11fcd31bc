"""The skill for assistants: its program, tests and commands work as printed; llms.txt lists the pages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tools import site

pytestmark = pytest.mark.req("HF-7")

SKILL = (site.ROOT / "skills" / "holdfast" / "SKILL.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", SKILL, re.DOTALL | re.MULTILINE)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shop, tests, patch = blocks("python")
    helpers = "def check_stock(order): ...\n\n\ndef send_parcel(order): ...\n\n\n"
    (tmp_path / "shop.py").write_text(f"{shop}\n\n{helpers}{patch}", encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(tests, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(blocks("ini")[0], encoding="utf-8")
    return tmp_path


def run(folder: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HOLDFAST_"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.slow
def test_program_and_tests_pass(project: Path) -> None:
    options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:schemathesis", "-p", "no:faker"]
    assert "3 passed" in run(project, sys.executable, "-m", "pytest", "-q", *options)


@pytest.mark.slow
def test_commands_work_in_their_order(project: Path) -> None:
    commands = [line[2:] for block in blocks("console") for line in block.splitlines()]
    assert len(commands) == 7
    make = (
        "import asyncio, shop; shop.place_order.enqueue(7, 'ada@example.com', 4_200); shop.app.run_worker(burst=True)"
    )
    run(project, sys.executable, "-c", make)
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "holdfast"
        run(project, sys.executable, "-m", "holdfast", *arguments)


def test_description_fits_the_format() -> None:
    head = SKILL.split("---")[1]
    fields = dict(re.findall(r"^(\w+): (.+)$", head, re.MULTILINE))
    assert fields["name"] == "holdfast"
    assert 100 < len(fields["description"]) < 1024
    assert len(SKILL) < 8_000  # an assistant reads all of it


def test_llms_txt_lists_every_page_with_what_it_is_about(tmp_path: Path) -> None:
    site.write_llms(tmp_path)
    index, full = ((tmp_path / name).read_text(encoding="utf-8") for name in ("llms.txt", "llms-full.txt"))
    assert index.startswith("# Holdfast\n\n> Durable jobs for Python")
    links = re.findall(r"^- \[(.+?)\]\((.+?)\)", index, re.MULTILINE)
    assert len(links) > 50
    assert ("Durable steps", "/guides/steps.md") in links
    assert "/skill.md" in {target for _, target in links}
    for name, target in links:
        text = (tmp_path / target.lstrip("/")).read_text(encoding="utf-8").strip()
        assert text in full or target == "/skill.md"
        assert name
    assert sum(": " in line for line in index.splitlines() if line.startswith("- [")) > 0.9 * len(links)
