"""An application that mounts the service stops while event streams are open: they end first, without an error."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.processes import free_port
from tests.support.waiting import until

PROGRAM = """
import holdfast, uvicorn
from fastapi import FastAPI
from holdfast.server.app import make_service
from holdfast.server.auth import at_this_machine

app = holdfast.App("sqlite:///jobs.db")
web = FastAPI()
web.mount("/jobs", make_service(app, authenticate=at_this_machine(app)))
uvicorn.run(web, host="127.0.0.1", port={port}, timeout_graceful_shutdown=90)
"""


@pytest.mark.slow
@pytest.mark.req("JF-16", "HF-8")
def test_open_streams_end_before_the_server_stops(tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(port=port)], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: _answers(port), "the server to listen")
        base = f"http://127.0.0.1:{port}/jobs"
        streams = [urllib.request.urlopen(f"{base}{path}", timeout=60) for path in ("/api/v1/events/stream", "/live")]
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        for stream in streams:
            stream.read()
        _, messages = process.communicate(timeout=80)
    finally:
        process.kill()
        process.wait()
    assert time.monotonic() - began < 60, "not ended by the server's time limit"
    assert "Traceback" not in messages, messages
    assert "ERROR" not in messages, messages


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
