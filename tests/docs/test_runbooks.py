"""The commands of the runbooks work, and every health reason is explained."""

from __future__ import annotations

import functools
import re
import shlex
from contextlib import closing
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from holdfast.cli.commands import app
from holdfast.features.assembly import Store, open_store
from holdfast.features.health import model as health
from tests.support.stores import FINAL, TENANT, new_id, put_one, settle, take

pytestmark = pytest.mark.req("DP-18", "DP-19")

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("runbooks.md", "guides/limits.md", "guides/health.md")
CODE = re.compile(r'(?:Concern|_warning)\(\s*"(\w+)"')
MAY_FAIL = ("health", "doctor")  # exit code 1 reports a problem


def commands(page: str) -> list[list[str]]:
    """The commands of the console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ holdfast ")]
    return [shlex.split(line.removeprefix("$ holdfast "), comments=True) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_commands_of_the_runbooks_work(
    request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url: str = request.getfixturevalue(f"{kind}_url")
    monkeypatch.setenv("HOLDFAST_URL", url)
    # Building the commands takes longer than running most of them.
    monkeypatch.setattr("typer.testing._get_command", functools.cache(typer.main.get_command))
    with closing(open_store(url)) as store:
        store.migrate()
        done: list[list[str]] = []
        for page in PAGES:
            listed = commands(page)
            assert len(listed) >= 2, page
            for command in listed:
                placeholders = {"ID", "GROUP"} & set(command)
                if command in done and not placeholders:
                    continue
                done.append(command)
                named = dict(zip(("ID", "GROUP"), _dead(store), strict=True)) if placeholders else {}
                result = CliRunner().invoke(app, [named.get(part, part) for part in command], prog_name="holdfast")
                assert result.exit_code in ((0, 1) if command[0] in MAY_FAIL else (0,)), (command, result.output)


def _dead(store: Store) -> tuple[str, str]:
    """The id and the group of a new dead letter."""
    queue = new_id()
    job_id = put_one(store, new_id(), queue=queue)
    settle(store, take(store, queues=(queue,)), FINAL)
    group = store.run(store.dead_letters.group_of(job_id, TENANT))
    assert group is not None
    return job_id, group.fingerprint


def test_dead_letters_are_handled_by_group_and_rate() -> None:
    """One command per job helps nobody who has a thousand of them."""
    section = (DOCS / "runbooks.md").read_text(encoding="utf-8").partition("## dead_letters")[2].partition("\n## ")[0]
    assert "holdfast dead-letters redrive GROUP --rate" in section
    assert "jobs redrive" not in section
    checked = health.assess(health.Health(0, 0, 0, 3, None, 1, (), "ok"))
    (concern,) = [each for each in checked.reasons if each.code == "dead_letters"]
    assert "holdfast dead-letters list" in concern.fix


def test_every_health_reason_is_explained() -> None:
    source = Path(health.__file__).read_text(encoding="utf-8")
    codes = set(CODE.findall(source))
    assert {"no_worker", "paused", "weak_durability"} <= codes
    for page in ("runbooks.md", "guides/health.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        assert {code for code in codes if f"`{code}`" not in text and f"## {code}" not in text} == set(), page
