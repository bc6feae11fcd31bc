"""The example project, run with its own commands, each in its own process as a user would."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

pytestmark = [pytest.mark.req("HF-8"), pytest.mark.slow, pytest.mark.timeout(300)]

PROJECT = Path(__file__).parents[3] / "examples" / "django_project"

ORDERS = """
import django; django.setup()
from django.test import Client
for number in range(3):
    print(Client().post("/orders/", {"email": f"{number}@example.com", "total": "9.50"}).json()["receipt"])
"""


LOGIN = """
import django; django.setup()
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_superuser("root"))
print(client.cookies["sessionid"].value)
"""


class Project:
    """Runs the project's commands, each in its own process."""

    def __init__(self, folder: Path) -> None:
        self.environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "SHOP_DATABASE": str(folder / "shop.sqlite3"),
        }
        self.environment.pop("HOLDFAST_URL", None)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=PROJECT, env=self.environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def test_example_project_runs(tmp_path: Path) -> None:
    run = Project(tmp_path).run
    run("manage.py", "migrate", "--verbosity", "0")
    run("manage.py", "makemigrations", "--check", "--dry-run")
    assert "no issues" in run("manage.py", "check", "--database", "default")
    run("manage.py", "test")
    receipts = run("-c", ORDERS).split()
    run("manage.py", "holdfast", "worker", "--processes", "2", "--burst")
    jobs = json.loads(run("manage.py", "holdfast", "jobs", "list", "--json"))
    assert {job["id"] for job in jobs if job["state"] == "succeeded"} == set(receipts)
    assert len(jobs) == 6, "reminders are due tomorrow"


def test_live_updates_under_asgi(tmp_path: Path) -> None:
    """A dashboard page gets a change event, and its open stream does not keep the server from stopping."""
    project = Project(tmp_path)
    project.run("manage.py", "migrate", "--verbosity", "0")
    session = project.run("-c", LOGIN).strip()
    command = [sys.executable, "-m", "uvicorn", "config.asgi:application", "--port", "0", "--lifespan", "off"]
    with (
        subprocess.Popen(command, cwd=PROJECT, env=project.environment, stderr=subprocess.PIPE, text=True) as server,
        ExitStack() as stack,
    ):
        try:
            assert server.stderr is not None
            port = next(int(found[1]) for line in server.stderr if (found := re.search(r"127\.0\.0\.1:(\d+)", line)))
            assert opened(stack, port, None).status == 302, "without a login there is no stream"
            streams = [opened(stack, port, session) for _ in range(2)]
            for stream in streams:
                assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
                assert until(stream, b"event: here")
            streams.pop().close()  # a page that was left
            project.run("-c", ORDERS)
            assert until(streams[0], b"event: changed")
            server.send_signal(signal.SIGTERM)
            streams[0].read()  # until its end
            server.stderr.read()
            assert server.wait(30) in (0, -signal.SIGTERM)
        finally:
            server.kill()


def opened(stack: ExitStack, port: int, session: str | None) -> http.client.HTTPResponse:
    connection = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)))
    cookie = {} if session is None else {"Cookie": f"sessionid={session}"}
    connection.request("GET", "/jobs/live", headers={"Accept": "text/event-stream", **cookie})
    return stack.enter_context(connection.getresponse())


def until(stream: http.client.HTTPResponse, wanted: bytes) -> bool:
    """Read lines until this one; False at the end of the stream."""
    return any(line.strip() == wanted for line in stream)
