"""W1 … W8 of one subject: prepare, run, check that each job ran once and is settled, and only then a figure."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.peers import environments
from bench.peers.backends import Backends, Place
from bench.peers.catalog import Subject
from bench.peers.meters import cpu_seconds, resident_mib
from bench.peers.process import Driver, DriverFailed, Runs

Figures = dict[str, float]


class Bench:
    """Runs drivers of one subject on one fresh database after another."""

    def __init__(self, backends: Backends, subject: Subject) -> None:
        self.backends = backends
        self.subject = subject

    # --- the pieces ---

    @contextmanager
    def place(self) -> Iterator[Place]:
        with self.backends.fresh(self.subject.backend, self.subject.scheme) as place:
            if self.subject.backend != "redis":  # there is no schema
                with self.driver(place, "prepare") as driver:
                    driver.expect("end", 60)
                    if driver.process.wait(30) != 0:
                        raise DriverFailed(f"prepare failed: {driver.errors()}")
            yield place

    def driver(self, place: Place, verb: str, **options: Any) -> Driver:
        folder = Path(tempfile.mkdtemp(dir=self.backends.folder))
        command = [*environments.command(self.subject), verb, place.url, json.dumps(options)]
        return Driver(command, environments.variables(), folder)

    def record(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.backends.folder)) / "record"

    def enqueue(self, place: Place, verb: str, count: int) -> float:
        """Seconds of enqueueing ``count`` jobs; the database must hold them all afterwards."""
        with self.driver(place, verb, count=count, batch=self.subject.batch) as driver:
            driver.expect("ready", 60)
            place.settle_down()
            driver.tell("go")
            seconds: float = driver.expect("done", 600)["seconds"]
        waiting = place.ask(self.subject.waiting or self.subject.left)
        if waiting != count:
            raise DriverFailed(f"{waiting} jobs are waiting instead of {count}")
        return seconds

    def drain(self, place: Place, count: int, processes: int = 1, **options: Any) -> tuple[Figures, Runs]:
        """From the first take to the last settlement, seen from outside."""
        records = [self.record() for _ in range(processes)]
        with ExitStack() as stack:
            drivers = [
                stack.enter_context(
                    self.driver(place, "work", record=str(each), total=count, **{**self.subject.work, **options})
                )
                for each in records
            ]
            for driver in drivers:
                driver.expect("ready", 60)
            place.settle_down()
            worker_cpu, server_cpu = sum(cpu_seconds(each.pid) for each in drivers), place.cpu()
            for driver in drivers:
                driver.tell("go")
            for driver in drivers:
                driver.expect("begun", 10)
            self._await_ran(drivers, count, within=60 + count / 100)
            end = self._await_settled(place, count, within=60)
            figures = {
                "seconds": (end - min(each.begun for each in drivers)) / 1e9,
                "worker_us": (sum(cpu_seconds(each.pid) for each in drivers) - worker_cpu) / count * 1e6,
                "server_us": (place.cpu() - server_cpu) / count * 1e6,
                "rss_mib": sum(resident_mib(each.pid) for each in drivers),
            }
            for driver in drivers:
                driver.tell("stop")
            for driver in drivers:
                driver.expect("finished", 60)
        runs = Runs()
        for each in records:
            runs.add(each)
        runs.check_once(count)
        if self.subject.settled is not None and (settled := place.ask(self.subject.settled)) != count:
            raise DriverFailed(f"the database says {settled} of {count} are settled")
        return figures, runs

    def _await_ran(self, drivers: list[Driver], count: int, within: float) -> None:
        """Progress comes by itself; only near the end are the drivers asked for the exact number."""
        deadline = time.monotonic() + within
        while (ran := sum(each.ran for each in drivers)) < count:
            if time.monotonic() > deadline or any(each.process.poll() is not None for each in drivers):
                raise DriverFailed(f"{ran} of {count} jobs ran: {drivers[0].errors()}")
            if count - ran <= 500 * len(drivers):
                for driver in drivers:
                    driver.tell("count")
            time.sleep(0.003)

    def _await_settled(self, place: Place, count: int, within: float) -> int:
        deadline = time.monotonic() + within
        question = self.subject.left.replace("{count}", str(count))
        while (left := place.ask(question)) != 0:
            if time.monotonic() > deadline:
                raise DriverFailed(f"all jobs ran, but {left} are not settled")
            time.sleep(0.002)
        return time.monotonic_ns()
