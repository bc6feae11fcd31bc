"""No message, log line or traceback repeats the password of a URL, whatever is wrong with the URL (M6).

A corpus of URLs that contain one password is passed to everything that takes a URL. All hosts are on this machine
and refuse at once, so no test waits for a network.
"""

from __future__ import annotations

import functools
import io
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout

import pytest
import typer.main
from typer.testing import CliRunner

from holdfast import App
from holdfast.cli.commands import app as commands
from holdfast.errors import InvalidSetting
from holdfast.features.assembly import open_store
from holdfast.features.postgres import PostgresStore
from holdfast.features.webhooks.model import check_url
from holdfast.outgoing.connection import _proxy
from holdfast.outgoing.policy import Target
from holdfast.remote import Client
from holdfast.stores.artifacts import open_artifacts
from holdfast.testing.database import private_store

pytestmark = pytest.mark.req("DP-17", "JF-13")

CANARY = "kanarienvogel"
HERE = "127.0.0.1:1"
SCHEMES = ("postgresql", "postgres", "postgresql+psycopg", "mysql", "POSTGRESQL", "http", "https", "s3", "sqlite", "")


def shapes(scheme: str) -> Iterator[str]:
    """Well-formed URLs and the usual typing mistakes."""
    yield f"{scheme}://u:{CANARY}@{HERE}/x"
    yield f"{scheme}://u:{CANARY}@{HERE}/x?connect_timeout=1"
    yield f"{scheme}://:{CANARY}@{HERE}/x"
    yield f"{scheme}://u:{CANARY}%@{HERE}/x"
    yield f"{scheme}://u:{CANARY}%zz@{HERE}/x"
    yield f"{scheme}://u:%{CANARY}@{HERE}/x"
    yield f"{scheme}://u:a@{CANARY}@{HERE}/x"
    yield f"{scheme}://u:{CANARY}@{CANARY}@{HERE}/x"
    yield f"{scheme}://u:{CANARY}/b@{HERE}/x"
    yield f"{scheme}://u:1/{CANARY}@{HERE}/x"
    yield f"{scheme}://u:{CANARY}#b@{HERE}/x"
    yield f"{scheme}://u:{CANARY}?b@{HERE}/x"
    yield f"{scheme}://u:{CANARY}@[::1/x"
    yield f"{scheme}://u:{CANARY}@[::1]x/x"
    yield f"{scheme}://u:{CANARY}[@{HERE}/x"
    yield f"{scheme}://[u:{CANARY}@{HERE}/x"
    yield f"{scheme}://u:{CANARY}@127.0.0.1:port/x"
    yield f"{scheme}://u:{CANARY}@127.0.0.1:99999/x"
    yield f"{scheme}://u:{CANARY}@127.0.0.1:1:1/x"
    yield f"{scheme}://u:{CANARY} b@{HERE}/x"
    yield f"{scheme}://u:{CANARY}\\b@{HERE}/x"
    yield f"{scheme}://u:{CANARY}\x00@{HERE}/x"
    yield f"{scheme}://u:{CANARY}"
    yield f"{scheme}://u:{CANARY}@"
    yield f"{scheme}:/u:{CANARY}@{HERE}/x"
    yield f"{scheme}:u:{CANARY}@{HERE}/x"
    yield f"{scheme}://{HERE}/x?password={CANARY}&nonsense=1"
    yield f"{scheme}://{HERE}/x?password={CANARY}%zz"
    yield f"host=127.0.0.1 port=1 password={CANARY} {scheme}"


CORPUS = [url for scheme in SCHEMES for url in shapes(scheme)]


def database(url: str) -> None:
    with closing(open_store(url, answer_within=1.0)) as store:
        if not isinstance(store, PostgresStore):
            return
        store.schema()


def app(url: str) -> None:
    with closing(App(url)) as made:
        repr(made)


def kit(url: str) -> None:
    if not url.startswith("sqlite"):
        with private_store(url, "holdfast"):
            pass


ENTRY_POINTS: dict[str, Callable[[str], object]] = {
    "open_store": database,
    "App": app,
    "kit": kit,
    "client": lambda url: Client(url, token="t" * 20).close(),
    "artifacts": open_artifacts,
    "webhook": check_url,
    "egress": Target.of,
    "proxy": _proxy,
}
COMMANDS = (
    *(("doctor",), ("migrate",), ("health",), ("jobs", "list"), ("enqueue", "k"), ("audit", "verify")),
    *(("worker", "nothing:here"), ("serve",), ("tenants", "list"), ("send-event", "paid")),
)


# Building the commands takes longer than running them.
get_command = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.testing._get_command", get_command)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "for tests")
    monkeypatch.setenv("HOLDFAST_URL", "")  # some commands set it for their children: monkeypatch restores it
    monkeypatch.delenv("HOLDFAST_URL")


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_no_entry_point_prints_the_password(entry_point: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("psycopg").setLevel(logging.DEBUG)
    leaks = [
        url
        for url in CORPUS
        if not (entry_point in ("open_store", "App") and url.startswith("sqlite:///"))
        and CANARY in output_of(entry_point, url, caplog)
    ]
    assert leaks == []


def output_of(entry_point: str, url: str, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            ENTRY_POINTS[entry_point](url)
        except Exception as error:
            # As it is printed, with causes and contexts, but without the source lines of this test.
            for each in traceback.TracebackException.from_exception(error, capture_locals=False).format():
                out.write("\n".join(line for line in each.splitlines() if "url" not in line))
            out.write(repr(error))
            out.write(str(getattr(error, "fix", "")))
    return out.getvalue() + caplog.text


def is_refused(url: str) -> bool:
    try:
        open_store(url).close()
    except InvalidSetting:
        return True
    return False


# Most commands retry the other URLs for a while: those are covered above, and with `doctor` below.
REFUSED = [url for url in CORPUS if url.startswith(("postgresql", "mysql", "sqlite://u", ":")) and is_refused(url)]


def test_doctor_does_not_print_the_password_of_an_unreachable_server(caplog: pytest.LogCaptureFixture) -> None:
    well_formed = [url for url in CORPUS if url.startswith("postgresql:") and url not in REFUSED and "\x00" not in url]
    assert len(well_formed) > 3
    for url in well_formed:
        result = CliRunner().invoke(commands, ["doctor", "--url", url], prog_name="holdfast")
        assert result.exit_code != 0
        assert CANARY not in result.output + caplog.text


@pytest.mark.parametrize("way", ["--url", "HOLDFAST_URL"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_the_password(
    command: tuple[str, ...], way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    leaks = []
    for url in REFUSED[:: 1 if command == ("doctor",) else 7]:
        caplog.clear()
        arguments = list(command)
        if way == "--url":
            arguments += ["--url", url]
        elif "\x00" not in url:
            monkeypatch.setenv("HOLDFAST_URL", url)
        result = CliRunner().invoke(commands, arguments, prog_name="holdfast")
        trace = "".join(traceback.format_exception(result.exception)) if result.exception else ""
        assert result.exit_code != 0, url
        if CANARY in result.output + trace + caplog.text:
            leaks.append(url)
    assert leaks == []
