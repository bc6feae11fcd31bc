"""The example project, by its own commands, each in a process of its own as a user would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.req("HF-8"), pytest.mark.slow]

PROJECT = Path(__file__).parents[3] / "examples" / "django_project"

ORDERS = """
import django; django.setup()
from django.test import Client
for number in range(3):
    print(Client().post("/orders/", {"email": f"{number}@example.com", "total": "9.50"}).json()["receipt"])
"""


def test_the_example_project(tmp_path: Path) -> None:
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
    }
    environment.pop("HOLDFAST_URL", None)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("manage.py", "migrate", "--verbosity", "0")
    run("manage.py", "makemigrations", "--check", "--dry-run")
    assert "no issues" in run("manage.py", "check", "--database", "default")
    run("manage.py", "test")
    receipts = run("-c", ORDERS).split()
    run("manage.py", "holdfast", "worker", "--processes", "2", "--burst")
    jobs = json.loads(run("manage.py", "holdfast", "jobs", "list", "--json"))
    assert {job["id"] for job in jobs if job["state"] == "succeeded"} == set(receipts)
    assert len(jobs) == 6, "reminders are due tomorrow"
