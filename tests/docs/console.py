"""Runs the console blocks of a guide in order and compares the output with the page.

Ids, times, durations and process ids may differ. An id of the page stands for the printed id in its place, also in
later commands. A line `…` stands for any lines. A read-only command is repeated until its output matches, because
workers take a moment; a worker is left running. A block without a command is the output of the newest worker after
Ctrl-C, which is sent once its previous output has appeared.
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
_SKIPPED = ("mkdir ", "python3 -m venv", "pip install", "holdfast dev ")
_READS = re.compile(r"^holdfast (?:jobs|approvals) (?:list|show|history)\b|^holdfast health")
_RUNS_ON = re.compile(r"^holdfast worker (?!.*--burst)")
TIMEOUT = 40.0


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Every command with its expected output."""
    result: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(page):
        if not block.startswith("$ "):
            result.append((INTERRUPT, []))
        for line in block.splitlines():
            if line.startswith("$ "):
                result.append((line[2:], []))
            else:
                result[-1][1].append(line)
    return result


class Console:
    """A folder, an environment, and the workers in the background."""

    def __init__(self, folder: Path, url: str, user: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
        settings = {"PATH": path, "LOGNAME": user, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", "HOLDFAST_URL": url}
        self._environment = clean | settings
        self._folder = folder
        self._ids: dict[str, str] = {}
        self._workers: list[tuple[subprocess.Popen[str], list[str]]] = []

    def follow(self, page: str) -> None:
        for command, expected in commands(page):
            if command.startswith(_SKIPPED) or command.startswith("export "):
                continue
            if _RUNS_ON.match(command):
                self._start(command, expected)
            elif command == INTERRUPT:
                self._interrupt(expected)
            else:
                self._run(command, expected)

    def _run(self, command: str, expected: list[str]) -> None:
        end = time.monotonic() + TIMEOUT
        while True:
            output = self._output(command)
            if self._matches(expected, output):
                return
            assert _READS.match(command), _difference(command, expected, output)
            assert time.monotonic() < end, _difference(command, expected, output)

    def _output(self, command: str) -> list[str]:
        actual = _ID.sub(lambda match: self._ids.get(match[0], match[0]), command)
        done = subprocess.run(
            ["bash", "-c", actual],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.splitlines()

    def _start(self, command: str, expected: list[str]) -> None:
        with (self._folder / f"terminal-{len(self._workers)}.log").open("w") as log:
            worker = subprocess.Popen(
                command.split(), cwd=self._folder, env=self._environment, stdout=log, stderr=log, text=True
            )
        self._workers.append((worker, expected))

    def _interrupt(self, expected: list[str]) -> None:
        number = len(self._workers) - 1
        worker, before = self._workers[number]
        end = time.monotonic() + TIMEOUT
        while not self._has_printed(number, before):
            assert time.monotonic() < end, _difference("the worker", before, self._lines(number))
        worker.send_signal(signal.SIGINT)
        worker.wait(30)
        wanted = [*before, *expected]
        self._workers[number] = (worker, wanted)
        assert self._has_printed(number, wanted), _difference("the worker", wanted, self._lines(number))

    def close(self) -> None:
        """Stop the workers and check that their output has the lines of the page in order."""
        for number, (worker, expected) in enumerate(self._workers):
            worker.terminate()
            worker.wait(30)
            assert self._has_printed(number, expected), _difference("the worker", expected, self._lines(number))

    def _lines(self, number: int) -> list[str]:
        lines = (self._folder / f"terminal-{number}.log").read_text().splitlines()
        # The role of the tests is a superuser, which a worker warns about.
        return [line for line in lines if "warning holdfast.worker: this role " not in line]

    def _has_printed(self, number: int, expected: list[str]) -> bool:
        return self._matches(["…", *(part for line in expected for part in (line, "…"))], self._lines(number))

    def kill(self) -> None:
        for worker, _ in self._workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    def _matches(self, expected: list[str], output: list[str]) -> bool:
        """Compare line by line; learn the ids of the page if everything else matches."""
        lines = list(output)
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
            for shown, actual in zip(_ID.findall(line), _ID.findall(lines.pop(0)), strict=True):
                if known.setdefault(shown, actual) != actual and "worker" not in line:
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


def _difference(command: str, expected: list[str], output: list[str]) -> str:
    return "\n".join([f"$ {command}", *output, "--- the page has:", *expected])
