"""Console blocks of a guide, run as they are printed: each command in turn, and what it says compared with the page.

Ids, times, spans and process numbers are not those of the page. An id that the page shows stands for the one that was
printed in its place, also in the commands after it. A line `…` on the page stands for any lines. A command that only
looks is repeated until it says what the page says, because workers take a moment; a worker is left running. A block
without a command is what the newest worker says when it gets a Ctrl-C, as soon as it has said what stands before.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MASKS = (
    (re.compile(r"worker [0-9a-f-]{8,36} \(\S+\)"), "WORKER"),
    (re.compile(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\.\d+"), "TIME"),
    (re.compile(r"\+?\d+(?:\.\d+)? (?:µs|ms|s|m|h|d)\b"), "SPAN"),
    (re.compile(r"\s+"), " "),
)
INTERRUPT = "Ctrl-C"
_DONE_ALREADY = ("mkdir ", "python3 -m venv", "pip install")
_LOOKS = re.compile(r"^holdfast (?:jobs|approvals) (?:list|show|history)\b|^holdfast health")
_STAYS = re.compile(r"^holdfast worker (?!.*--burst)")
PATIENCE = 40.0


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Every command with the lines that are printed below it."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(page):
        if not block.startswith("$ "):
            found.append((INTERRUPT, []))
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


class Console:
    """A folder, an environment, and whoever works there in the background."""

    def __init__(self, folder: Path, url: str, user: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
        ours = {"PATH": path, "LOGNAME": user, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", "HOLDFAST_URL": url}
        self._environment = clean | ours
        self._folder = folder
        self._ids: dict[str, str] = {}
        self._staying: list[tuple[subprocess.Popen[str], list[str]]] = []

    def follow(self, page: str) -> None:
        for command, expected in commands(page):
            if command.startswith(_DONE_ALREADY) or command.startswith("export "):
                continue
            if _STAYS.match(command):
                self._stay(command, expected)
            elif command == INTERRUPT:
                self._interrupt(expected)
            else:
                self._run(command, expected)

    def _run(self, command: str, expected: list[str]) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            said = self._said(command)
            if self._agrees(expected, said):
                return
            assert _LOOKS.match(command), _difference(command, expected, said)
            assert time.monotonic() < end, _difference(command, expected, said)

    def _said(self, command: str) -> list[str]:
        theirs = _ID.sub(lambda found: self._ids.get(found[0], found[0]), command)
        done = subprocess.run(
            ["bash", "-c", theirs],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.splitlines()

    def _stay(self, command: str, expected: list[str]) -> None:
        with (self._folder / f"terminal-{len(self._staying)}.log").open("w") as log:
            staying = subprocess.Popen(
                command.split(), cwd=self._folder, env=self._environment, stdout=log, stderr=log, text=True
            )
        self._staying.append((staying, expected))

    def _interrupt(self, expected: list[str]) -> None:
        number = len(self._staying) - 1
        staying, before = self._staying[number]
        end = time.monotonic() + PATIENCE
        while not self._has_said(number, before):
            assert time.monotonic() < end, _difference("the worker", before, self._lines(number))
        staying.send_signal(signal.SIGINT)
        staying.wait(30)
        wanted = [*before, *expected]
        self._staying[number] = (staying, wanted)
        assert self._has_said(number, wanted), _difference("the worker", wanted, self._lines(number))

    def close(self) -> None:
        """End what was left running; it has said what the page says, in that order."""
        for number, (staying, expected) in enumerate(self._staying):
            staying.terminate()
            staying.wait(30)
            assert self._has_said(number, expected), _difference("the worker", expected, self._lines(number))

    def _lines(self, number: int) -> list[str]:
        lines = (self._folder / f"terminal-{number}.log").read_text().splitlines()
        # The tests' own role is a superuser, which a worker warns of; the readers' is, or is not.
        return [line for line in lines if "warning holdfast.worker: this role " not in line]

    def _has_said(self, number: int, expected: list[str]) -> bool:
        return self._agrees(["…", *(part for line in expected for part in (line, "…"))], self._lines(number))

    def kill(self) -> None:
        for staying, _ in self._staying:
            if staying.poll() is None:
                staying.kill()
                staying.wait()

    def _agrees(self, expected: list[str], said: list[str]) -> bool:
        """Line by line; the ids of the page are learned on the way, if everything else is the same."""
        lines = list(said)
        known = dict(self._ids)
        anything = False
        for line in expected:
            if line == "…":
                anything = True
                continue
            while anything and lines and not _alike(line, lines[0]):
                lines.pop(0)
            if not lines or not _alike(line, lines[0]):
                return False
            for ours, theirs in zip(_ID.findall(line), _ID.findall(lines.pop(0)), strict=True):
                if known.setdefault(ours, theirs) != theirs and "worker" not in line:
                    return False
            anything = False
        self._ids = known
        return anything or not lines


def _alike(line: str, other: str) -> bool:
    return _masked(line) == _masked(other)


def _masked(line: str) -> str:
    for pattern, word in _MASKS:
        line = pattern.sub(word, line)
    return _ID.sub("ID", line).strip()


def _difference(command: str, expected: list[str], said: list[str]) -> str:
    return "\n".join([f"$ {command}", *said, "--- the page has:", *expected])
