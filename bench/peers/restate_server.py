"""A Restate server for one subject and workload, from the peer's npm package, and queries of its state."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

from bench.peers.environments import ROOT
from tests.support.processes import free_port

# Calls wait while no worker runs. They are retried once a second, so that they do not slow the enqueues down.
CONFIG = """
base-dir = "{folder}"
listen-mode = "tcp"
bind-port = {node}
disable-telemetry = true
log-filter = "error"
[ingress]
bind-address = "127.0.0.1:{ingress}"
[admin]
bind-address = "127.0.0.1:{admin}"
[default-retry-policy]
initial-interval = "1s"
exponentiation-factor = 1.0
max-interval = "1s"
max-attempts = "unlimited"
"""


class RestateServer:
    def __init__(self, folder: Path) -> None:
        program = next(ROOT.glob("restate/node_modules/@restatedev/restate-server-*/bin/restate-server"))
        self.ingress, self.admin, self.service, node = (free_port() for _ in range(4))
        folder.mkdir()
        self._config = folder / "restate.toml"
        self._config.write_text(CONFIG.format(folder=folder, node=node, ingress=self.ingress, admin=self.admin))
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [str(program), "--config-file", str(self._config), "--no-logo"],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "DO_NOT_TRACK": "1"},
        )
        deadline = time.monotonic() + 30
        while not self._healthy():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.close()
                raise OSError(f"Restate did not start: {(folder / 'log').read_text()[-600:]}")
            time.sleep(0.1)

    @property
    def url(self) -> str:
        """For the driver: the ingress, the administration, and the port of its service."""
        return f"http://127.0.0.1:{self.ingress} http://127.0.0.1:{self.admin} {self.service}"

    def _healthy(self) -> bool:
        try:
            for address in (f"{self.ingress}/restate/health", f"{self.admin}/health"):
                urllib.request.urlopen(f"http://127.0.0.1:{address}", timeout=2).close()
        except OSError:
            return False
        return True

    def number(self, question: str) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin}/query",
            json.dumps({"query": question}).encode(),
            {"content-type": "application/json", "accept": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            (row,) = json.load(answer)["rows"]
        return int(row["n"])

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)
        self._log.close()
