"""Run one subject on fresh databases: enqueue, drain, hold, wait. Each phase is checked before it counts.

The harness decides when a clock starts (the driver is connected and has reported it) and when it ends (the database has
nothing left), so that no subject times itself.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import environments
from bench.peers.backends import Backends, Place
from bench.peers.catalog import Subject
from bench.peers.meters import cpu_seconds, resident_mib
from bench.peers.process import Driver, DriverFailed, Runs

Figures = dict[str, float]


@dataclass(frozen=True)
class Team:
    """Worker processes that have started, with their CPU time and the server's at that moment."""

    drivers: list[Driver]
    records: list[Path]
    worker_cpu: float
    server_cpu: float
    written: int

    @property
    def begun(self) -> int:
        return min(each.begun for each in self.drivers)

    def cpu(self) -> float:
        return sum(cpu_seconds(each.pid) for each in self.drivers) - self.worker_cpu

    def resident_mib(self) -> float:
        return sum(resident_mib(each.pid) for each in self.drivers)

    def stop(self) -> Runs:
        """Stop gracefully, so that completed jobs are recorded."""
        for driver in self.drivers:
            driver.tell("stop")
        for driver in self.drivers:
            driver.expect("finished", 120)
        return Runs(self.records)


class Bench:
    def __init__(self, backends: Backends, subject: Subject) -> None:
        self.backends = backends
        self.subject = subject

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A fresh database with the subject's schema."""
        with self.backends.fresh(self.subject.backend, self.subject.scheme) as place:
            if self.subject.backend != "redis":  # there is no schema
                with self.driver(place, "prepare") as driver:
                    driver.expect("end", 60)
                    if driver.process.wait(30) != 0:
                        raise DriverFailed(f"prepare failed: {driver.errors()}")
            yield place

    def driver(self, place: Place, verb: str, **options: Any) -> Driver:
        folder = Path(tempfile.mkdtemp(dir=self.backends.folder))
        command = [*self.command(), verb, place.url, json.dumps(options)]
        return Driver(command, self.variables(), folder)

    def command(self) -> list[str]:
        return environments.command(self.subject)

    def variables(self) -> dict[str, str]:
        return environments.variables()

    def record(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.backends.folder)) / "record"

    def enqueue(self, place: Place, verb: str, count: int, **options: Any) -> Figures:
        """Measure enqueuing ``count`` jobs; the database must have all of them afterwards."""
        with self.driver(place, verb, count=count, batch=self.subject.batch, **options) as driver:
            driver.expect("ready", 60)
            place.settle_down()
            size, written, cpu = place.size(), place.written(), place.cpu()
            driver.tell("go")
            seconds: float = driver.expect("done", 60 + count / 100)["seconds"]
            cpu = place.cpu() - cpu
        waiting = place.ask(self.subject.waiting or self.subject.left)
        if waiting != count:
            raise DriverFailed(f"{waiting} jobs are waiting instead of {count}")
        return {
            "jobs_s": count / seconds,
            "server_us": cpu / count * 1e6,
            "wal_bytes": (place.written() - written) / count,
            "disk_bytes": (place.size() - size) / count,
        }

    @contextmanager
    def workers(self, place: Place, processes: int = 1, **options: Any) -> Iterator[Team]:
        """Start worker processes and wait until they are connected and claim jobs."""
        records = [self.record() for _ in range(processes)]
        with ExitStack() as stack:
            drivers = [
                stack.enter_context(self.driver(place, "work", record=str(each), **{**self.subject.work, **options}))
                for each in records
            ]
            for driver in drivers:
                driver.expect("ready", 60)
            place.settle_down()
            worker_cpu = sum(cpu_seconds(each.pid) for each in drivers)
            team = Team(drivers, records, worker_cpu, place.cpu(), place.written())
            for driver in drivers:
                driver.tell("go")
            for driver in drivers:
                driver.expect("begun", 10)
            yield team

    def drain(self, place: Place, count: int, processes: int = 1, **options: Any) -> tuple[Figures, Runs]:
        """Measure from the first claim to the moment when the database has all jobs settled.

        With ``steps``, the steps of the jobs are counted, and each must have run once.
        """
        recorded, settled = count * options.get("steps", 1), self.settled(place)
        with self.workers(place, processes, **options) as team:
            self.await_ran(team, recorded, within=60 + recorded / 50)
            seconds = (self.await_settled(place, count, within=60) - team.begun) / 1e9
            figures = {
                "jobs_s": count / seconds,
                "worker_us": team.cpu() / count * 1e6,
                "server_us": (place.cpu() - team.server_cpu) / count * 1e6,
                "wal_bytes": (place.written() - team.written) / count,
                "rss_mib": team.resident_mib(),
            }
            runs = team.stop()
        runs.check_once(recorded)
        self.check_settled(place, settled + count)
        return figures, runs

    def settled(self, place: Place) -> int:
        return 0 if self.subject.settled is None else place.ask(self.subject.settled)

    def check_settled(self, place: Place, count: int) -> None:
        if self.subject.settled is not None:
            message = "the database does not say that all are settled"
            wait_until(lambda: self.settled(place) == count, 5, message)

    def await_ran(self, team: Team, count: int, within: float) -> None:
        """Drivers report progress by themselves; only near the end are they asked for the exact number."""
        drivers = team.drivers
        deadline = time.monotonic() + within
        while (ran := sum(each.ran for each in drivers)) < count:
            if time.monotonic() > deadline or any(each.process.poll() is not None for each in drivers):
                raise DriverFailed(f"{ran} of {count} jobs ran: {drivers[0].errors()}")
            if count - ran <= 500 * len(drivers):
                for driver in drivers:
                    driver.tell("count")
            time.sleep(0.003)

    def await_settled(self, place: Place, count: int, within: float) -> int:
        question = self.subject.left.replace("{count}", str(count))
        wait_until(lambda: place.ask(question) == 0, within, "all jobs ran, but not all are settled")
        return time.monotonic_ns()


def wait_until(true: Callable[[], bool], within: float, complaint: str) -> None:
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            raise DriverFailed(complaint)
        time.sleep(0.002)
