"""The script of live pages, run by Node with a minimal stand-in for the browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import holdfast.server

pytestmark = pytest.mark.req("HF-8")

SCRIPT = Path(holdfast.server.__file__).parent / "static" / "live.js"

BROWSER = """
const listeners = {}, timers = [], refreshed = [], opened = [];
const words = { textContent: "" }, button = { addEventListener: (_, call) => (listeners.pause = call) };
const part = { dataset: { live: "1" }, matches: () => false, querySelectorAll: () => [] };
const find = (name) => (name === "span" ? words : button);
const state = { dataset: { from: "/jobs/live" }, hidden: true, querySelector: find };
Object.assign(globalThis, {
  document: {
    hidden: false,
    getElementById: () => state,
    querySelectorAll: () => [part],
    querySelector: () => null,
    addEventListener: (name, call) => (listeners[name] = call),
  },
  sessionStorage: { getItem: () => null, setItem: () => undefined },
  window: { htmx: { trigger: () => refreshed.push(1) } },
  addEventListener: () => undefined,
  setInterval: (call, every) => timers.push({ call, every, on: true }),
  clearInterval: (number) => number && (timers[number - 1].on = false),
  setTimeout: (call) => call(),
  fetch: async () => ({ status: STATUS }),
  EventSource: class {
    static CLOSED = 2;
    readyState = 2;
    constructor(from) { opened.push(from); if (opened.length < 3) queueMicrotask(() => this.onerror()); }
    addEventListener() {}
    close() {}
  },
});
const settled = () => new Promise((resolve) => setImmediate(resolve));
"""

DONE = """
(async () => {
  await settled();
  const polls = () => timers.filter((timer) => timer.every === 10000 && timer.on);
  const first = { says: words.textContent, polls: polls().length, opened: opened.length };
  for (const poll of polls()) poll.call();
  const paused = polls().length && (listeners.pause(), polls().length);
  console.log(JSON.stringify({ ...first, refreshed: refreshed.length, paused }));
})();
"""


def run(status: int) -> dict[str, object]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("NOT TESTED: live.js, because node is missing")
    program = BROWSER.replace("STATUS", str(status)) + SCRIPT.read_text(encoding="utf-8") + DONE
    done = subprocess.run([node, "-e", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_page_polls_if_host_cannot_stream() -> None:
    wanted = {"says": "Refreshed every 10 s", "polls": 1, "opened": 1, "refreshed": 1, "paused": 0}
    assert run(204) == wanted


def test_page_reports_failed_stream_and_retries() -> None:
    result = run(503)
    assert (result["polls"], result["opened"]) == (0, 3)
    assert str(result["says"]).startswith("Stale since")
