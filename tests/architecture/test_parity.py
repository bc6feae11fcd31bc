"""`App`, the client, HTTP, the command line and the TypeScript client offer the same operations under one name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pytest
from typer.main import get_command

from holdfast import App
from holdfast.cli.commands import app as cli
from holdfast.engine.declared import http_of, why_local
from holdfast.engine.operation import Namespace, operation, stream
from holdfast.remote import Client
from tools.typescript import FOLDER, camel, document, operations

pytestmark = pytest.mark.req("JF-14", "HF-5")


@dataclass(frozen=True)
class Exempt:
    """Operations that a surface lacks, or has under another name (``called``), and the reason. One that is not needed
    fails."""

    surface: str
    names: str
    reason: str
    called: str | None = None

    def holds(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names.split())


PARTS = "a part of the whole, for requests and the client"
OFTEN = "typed often, so a command of its own"
PAGES = "`list` of App takes any limit; of the client, at most a page"
EXCEPTIONS = (
    Exempt("command", "audit.verify_some audit.export_some", PARTS),
    Exempt("typescript", "audit.verify_some audit.export_some", f"{PARTS}: `audit.verify` and `audit.export` there"),
    Exempt("command", "health.statistics health.activity", "`holdfast top` shows the figures as they change"),
    Exempt("command", "usage.count", "`holdfast usage` counts first"),
    Exempt("command", "restores.check restores.adopt", "one command, with --adopt", called="restore-check"),
    Exempt("command", "health.get", OFTEN, called="health"),
    Exempt("command", "usage.list", OFTEN, called="usage"),
    Exempt("command", "jobs.why", OFTEN, called="why"),
    Exempt("command", "pauses.set", OFTEN, called="pause"),
    Exempt("command", "pauses.remove", OFTEN, called="resume"),
    Exempt("command", "pauses.list", OFTEN, called="pauses"),
    Exempt("command", "events.read", "the events of jobs; a position is kept with --consumer", called="events"),
    Exempt("command", "events.read_sent", "a program handles them; `holdfast consumers` has their readers"),
    Exempt("command", "dead_letters.groups", "the list of dead letters is by group", called="dead-letters list"),
    Exempt("command", "dead_letters.group", "`show` for get", called="dead-letters show"),
    Exempt("command", "dead_letters.jobs", "`dead-letters show` has the newest, `jobs list --group` all"),
    Exempt("command", "dead_letters.redrive_as", "`jobs redrive --payload`"),
    Exempt("command", "approvals.issue_token", "shorter: its result is a token", called="approvals token"),
    Exempt("command", "approvals.get_by_token", "`approvals show` takes a token too"),
    Exempt("command", "jobs.details", "it is all that `show` shows", called="jobs show"),
    Exempt(
        "command",
        "jobs.artifacts jobs.attempts jobs.chain jobs.checkpoints jobs.liveness jobs.progress jobs.references"
        " jobs.result jobs.steps",
        "`jobs show` has them",
    ),
    Exempt("command", "jobs.add_payload_index jobs.remove_payload_index", "with --remove", called="jobs index"),
    Exempt("command", "jobs.payload_indexes", "the list of what `jobs index` added", called="jobs indexes"),
    Exempt("command", "operations.run", "`operations start --wait`"),
    Exempt("command", "reservations.set reservations.record", "only a program that renews it can hold a reservation"),
    Exempt("command", "subscriptions.behind", "`subscriptions list` and `show` have it"),
    Exempt("command", "tenants.set_fair_queues", "without on or off, it prints", called="tenants fair-queues"),
    Exempt("command", "tenants.set_registered_only", "without on or off, it prints", called="tenants registered-only"),
    Exempt("command", "workflows.extend", "a program builds the jobs and their dependencies"),
    Exempt("options", "policies.set", "pairs NAME=VALUE"),
    Exempt("options", "tenants.set_fair_queues tenants.set_registered_only", "on or off, as a word"),
    Exempt("app", "leases.*", "App itself is a worker; leases are for workers over HTTP"),
    Exempt("app", "approvals.every jobs.every workflows.every", PAGES),
    Exempt("app", "events.list events.follow", "`events.read`, whose position is in the database"),
    Exempt("typescript", "*.every", "`list` reads all pages as it is iterated"),
    Exempt("typescript", "jobs.search", "`jobs.list({ q: … })`"),
    Exempt("typescript", "jobs.result", "it may wait, and is not only of jobs that succeeded", called="jobs.outcome"),
    Exempt("typescript", "leases.progress", "a handler of the worker has `progress`"),
)


def programs(namespace: Namespace) -> Iterator[tuple[str, Any]]:
    for name in dir(type(namespace)):
        form = inspect.getattr_static(type(namespace), name)
        if name[0] != "_" and isinstance(form, operation | stream):
            yield name, form.program


def of_namespaces(owner: App | Client) -> dict[str, Any]:
    """The programs of its operations, by ``noun.verb``."""
    nouns = {noun: each for noun in dir(owner) if isinstance(each := getattr(owner, noun), Namespace)}
    owner.close()
    return {f"{noun}.{verb}": program for noun, each in nouns.items() for verb, program in programs(each)}


def of_client() -> set[str]:
    """What is declared, or written for the client."""
    offered = of_namespaces(Client("http://127.0.0.1:9", token="hf_x"))
    return {name for name, each in offered.items() if http_of(each) or each.__module__.startswith("holdfast.remote.")}


def of_http() -> set[str]:
    routes = {(method.upper(), path) for path, methods in document()["paths"].items() for method in methods}
    declared = {name: http_of(program) for name, program in OPERATIONS.items()}
    return {name for name, each in declared.items() if each and (each.method, f"/api/v1{each.path}") in routes}


def of_commands() -> set[str]:
    tree: dict[str, Any] = get_command(cli).commands  # type: ignore[attr-defined]
    return {*tree, *(f"{group} {name}" for group, each in tree.items() for name in getattr(each, "commands", ()))}


def of_typescript() -> set[str]:
    """What is generated, or written by hand in the class of a noun."""
    offered = {each.full for each in operations(document())}
    for file in ("client.ts", "events.ts", "jobs.ts", "reservation.ts"):
        source = (FOLDER.parent / file).read_text("utf-8")
        for part in re.split(r"^(?:export )?class ", source, flags=re.MULTILINE)[1:]:
            noun = part[0].lower() + part.split()[0][1:]
            methods = re.findall(r"^  (?:async )?\*?(\w+)(?:<T>)?\(", part, re.MULTILINE)
            offered |= {f"{noun}.{method}" for method in methods}
    return offered


OPERATIONS = of_namespaces(App("sqlite:///:memory:"))
OFFERED: dict[str, set[str]] = {
    "client": of_client(),
    "http": of_http(),
    "command": of_commands(),
    "typescript": of_typescript(),
}


def called(surface: str, name: str) -> str:
    noun, verb = name.split(".")
    if surface == "command":
        return f"{noun} {'show' if verb == 'get' else verb}".replace("_", "-")
    return f"{camel(noun)}.{camel(verb)}" if surface == "typescript" else name


def check(surface: str, lacking: set[str]) -> None:
    exceptions = [each for each in EXCEPTIONS if each.surface == surface]
    assert sorted(name for name in lacking if not any(each.holds(name) for each in exceptions)) == []
    patterns = [pattern for each in exceptions for pattern in each.names.split()]
    unneeded = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in lacking)]
    assert unneeded == [], "these exceptions are not needed"
    assert {each.called for each in exceptions if each.called is not None} <= OFFERED.get(surface, set())


@pytest.mark.parametrize("surface", OFFERED)
def test_a_surface_lacks_nothing_without_a_reason(surface: str) -> None:
    # What needs the database says so where it is declared; commands have the database.
    local = {name for name, program in OPERATIONS.items() if why_local(program) and surface != "command"}
    wanted = OPERATIONS.keys() | OFFERED["client"] if surface == "typescript" else OPERATIONS.keys()
    check(surface, {name for name in wanted - local if called(surface, name) not in OFFERED[surface]})


def test_the_client_has_nothing_that_the_app_lacks() -> None:
    check("app", OFFERED["client"] - OPERATIONS.keys())
