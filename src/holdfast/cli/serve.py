"""``holdfast serve``: the HTTP API and the dashboard of an app or of a database, with uvicorn.

On the first SIGTERM or Ctrl-C, running requests are completed within ten seconds, streams are ended, and the process
exits with 0. On the second, it exits at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast import config
from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.cli import options, output
from holdfast.cli.output import announce, emit
from holdfast.cli.run_worker import cancel_tasks, on_signals, run_to_end
from holdfast.cli.session import NAME, load_app, refuse_absent, refuse_unready, scope
from holdfast.engine.declared import Help
from holdfast.engine.job import EVERY_TENANT
from holdfast.errors import HoldfastError, InvalidSetting, Refused, StoreUnavailable
from holdfast.stores.flow import WaitLimit, return_memory_early, wait_limit_of

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


GRACE = 10
"""Seconds for running requests to complete at shutdown."""
RESPONSE_RESERVE = 2
"""Seconds before the end of the grace period at which requests stop waiting for the database, to respond in time."""
BODY_TIMEOUT = 10.0
"""Seconds to receive a request, head and body; a large body has more, by its size."""
CLEANUP_TIMEOUT = 3
"""Seconds for everything else that ends with the service."""


def make_web(
    app: App,
    *,
    local: bool,
    person: str | None = None,
    dashboard: bool = True,
    maintenance: str | None = None,
    body_timeout: float = BODY_TIMEOUT,
) -> FastAPI:
    """Return the service of an app. With ``local``, requests need no token and may do everything, as ``person``."""
    try:
        from holdfast.server.app import make_service
        from holdfast.server.auth import at_this_machine
        from holdfast.server.sessions import tokens_of
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "holdfast":
            raise
        raise missing_extra() from error
    authenticate = at_this_machine(app, person) if local else tokens_of(app)
    return make_service(
        app, authenticate=authenticate, dashboard=dashboard, maintenance=maintenance, body_timeout=body_timeout
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket: a wrong address raises at once, and port 0 has become a number."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With IPPROTO_TCP, because asyncio sets TCP_NODELAY only then. Without it each small response waits 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(2048)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise StoreUnavailable(
            f"cannot listen on {host}, port {port}: {error.strerror or error}",
            code="address_unusable",
            fix="Choose another address with --host and --port.",
        ) from error
    return listening


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop, if installed: it sends a response in one piece, with fewer system calls."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def refuse_unsafe(host: str, *, local: bool) -> None:
    """Raise ``Refused`` if ``host`` is not a loopback address and no login is required."""
    if local and not is_loopback(host):
        raise Refused(
            f"refusing to serve without authentication on the public address {host}",
            code="unsafe_address",
            fix="Omit --no-auth and issue tokens (holdfast tokens issue), or listen on 127.0.0.1.",
        )


def is_loopback(host: str) -> bool:
    try:
        addresses = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(ipaddress.ip_address(address).is_loopback for address in addresses)


def address_of(listening: socket.socket, root_path: str = "") -> str:
    host, port = listening.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}{root_path}/"


@asynccontextmanager
async def serving(
    web: FastAPI,
    listening: socket.socket,
    *,
    root_path: str = "",
    trusted: Sequence[str] = (),
    hurry: asyncio.Event | None = None,
    body_timeout: float = BODY_TIMEOUT,
) -> AsyncIterator[asyncio.Event]:
    """Serve requests within the block.

    At its end, running requests have the grace period to complete, or no time once ``hurry`` is set. The event that the
    block receives is set if the server ends by itself.
    """
    limited = TimeLimited(web, web.state.wait_limit)
    server = web_server(limited, root_path, trusted, body_timeout)
    others, stopped = asyncio.all_tasks(), asyncio.Event()
    task = asyncio.create_task(server.serve([listening]))
    task.add_done_callback(lambda _: stopped.set())
    try:
        yield stopped
    finally:
        server.should_exit = True
        limited.stop_waiting_in(GRACE - RESPONSE_RESERVE)
        web.state.stopping.set()
        # Streams do not end by themselves: end them first, or the server would wait for them.
        live = getattr(web.state, "live", None)
        if live is not None:
            await live.aclose()
        if not await _within(GRACE + CLEANUP_TIMEOUT, task, hurry):
            limited.stop_waiting_in(0)
            for request in list(server.server_state.tasks):
                request.cancel()
            if not await _within(CLEANUP_TIMEOUT, task):
                server.force_exit = True
                task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listening.close()
        # Requests may have left some, such as the watcher of a stream. asyncio would warn about them.
        await cancel_tasks(others, CLEANUP_TIMEOUT)
        if not task.cancelled() and isinstance(error := task.exception(), (SystemExit, Exception)):
            raise HoldfastError("the web server could not start; the reason is above", code="server_failed") from error


async def _within(seconds: float, task: asyncio.Task[Any], hurry: asyncio.Event | None = None) -> bool:
    """Wait for the task; return whether it ended in time and before ``hurry`` was set."""
    hurried = asyncio.create_task((hurry or asyncio.Event()).wait())
    await asyncio.wait({task, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    return task.done()


def web_server(
    web: ASGIApp, root_path: str = "", trusted: Sequence[str] = (), body_timeout: float = BODY_TIMEOUT
) -> Any:
    """Return a server of uvicorn that leaves signals to the command."""
    try:
        import uvicorn

        from holdfast.cli.connections import most_connections, timed_protocol
    except ModuleNotFoundError as error:
        raise missing_extra() from error

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the command handles signals

    most = most_connections()
    settings = uvicorn.Config(
        web,
        http=timed_protocol(body_timeout, most),
        backlog=min(2048, most // 2),  # as many may be accepted before the first of them is counted
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        root_path=root_path,
        proxy_headers=bool(trusted),
        forwarded_allow_ips=list(trusted),
        timeout_graceful_shutdown=GRACE,
    )
    return Server(settings)


def check_root_path(text: str) -> str:
    path = text.rstrip("/")
    if path and (not path.startswith("/") or "//" in path or not path.isprintable() or set(path) & set("?#\\ ")):
        raise InvalidSetting("the root path must be a path such as /jobs", code="invalid_root_path")
    return path


def check_trusted(addresses: Sequence[str]) -> list[str]:
    """Check the addresses of trusted proxies: addresses and networks, but not all networks."""
    for address in addresses:
        try:
            network = ipaddress.ip_network(address, strict=False)
        except ValueError:
            raise InvalidSetting(
                f"{address!r} is not the address of a proxy",
                code="invalid_proxy",
                fix="Use an address or a network: 10.0.0.0/8.",
            ) from None
        if network.prefixlen == 0:
            raise InvalidSetting('"*" is not the address of a proxy', code="invalid_proxy")
    return list(addresses)


def missing_extra(extra: str = "server") -> InvalidSetting:
    return InvalidSetting(
        f"the extra {extra} is not installed",
        code="missing_extra",
        fix=f"pip install 'holdfast[{extra}]'",
    )


HOST, PORT = "127.0.0.1", 8000
HINT_TIMEOUT = 2.0
"""Seconds to find out whether a hint about tokens is needed."""

Host = Annotated[str, Help("Address to listen on.", "ADDRESS")]
Port = Annotated[int, Help("Port to listen on; 0 chooses a free one.", "N", low=0, high=65535)]


def serve(
    app: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="Location of the App; without it, --url names the database."),
    ] = None,
    url: options.Url = None,
    host: Host = HOST,
    port: Port = PORT,
    no_dashboard: Annotated[bool, Help("Serve only the HTTP API.")] = False,
    no_auth: Annotated[bool, Help("Require no login; allowed only on a loopback address.")] = False,
    root_path: Annotated[str, Help("Path prefix that a reverse proxy removes: /jobs.", "PATH")] = "",
    trust_proxy: Annotated[
        list[str] | None,
        Help("Address of a proxy whose X-Forwarded-For and -Proto headers are trusted; repeatable.", "ADDRESS"),
    ] = None,
    maintenance: Annotated[
        bool,
        Help(
            "Run maintenance tasks (schedules, expired leases, seals) in this process, or leave them to workers.",
            option="--maintenance/--no-maintenance",
        ),
    ] = True,
    body_timeout: Annotated[
        float,
        typer.Option(
            "--body-timeout",
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="Maximum time to receive a request; larger bodies get more.",
        ),
    ] = BODY_TIMEOUT,
    tenant: options.Tenant = None,
    schema: options.Schema = options.SCHEMA,
    log_level: options.LogLevel = options.Level.INFO,
    log_format: options.LogForm = None,
    as_json: Annotated[bool, Help("Log JSON lines, and print the address as JSON on stdout.", option="--json")] = False,
) -> None:
    """Serve the HTTP API and the dashboard.

    Callers need an API token (holdfast tokens issue). Workers run the jobs; this process runs only those of a tick. It
    also runs maintenance tasks, for every tenant or for the one that is named.
    """
    trusted = check_trusted(trust_proxy or [])
    prefix = check_root_path(root_path)
    refuse_unsafe(host, local=no_auth)
    if no_auth and trusted:
        raise InvalidSetting(
            "--no-auth cannot be used behind a proxy: every request would come from this machine",
            code="conflicting_options",
            fix="Omit --no-auth.",
        )
    output.set_up(log_level.value, as_json=options.logs_json(log_format, as_json))
    served = _app(app, url, tenant, schema)
    site = make_web(
        served,
        local=no_auth,
        dashboard=not no_dashboard,
        maintenance=(EVERY_TENANT if tenant is None else scope(tenant)) if maintenance else None,
        body_timeout=body_timeout,
    )
    listening = listen(host, port)

    async def run() -> None:
        stop, hurry = asyncio.Event(), asyncio.Event()

        def on_signal() -> None:
            (hurry if stop.is_set() else stop).set()

        on_signals(on_signal, stop.set)
        try:
            async with serving(
                site, listening, root_path=prefix, trusted=trusted, hurry=hurry, body_timeout=body_timeout
            ) as ended:
                await _print_address(served, address_of(listening, prefix), no_auth, as_json)
                waiting = [asyncio.create_task(event.wait()) for event in (stop, ended)]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in waiting:
                    task.cancel()
                if not as_json:
                    announce("Stopping: waiting for running requests. Press Ctrl-C again to exit at once.")
        finally:
            await served.aclose()

    return_memory_early()
    sys.setswitchinterval(0.001)  # large bodies are parsed in a thread: let the loop run again sooner
    run_to_end(run(), new_loop())


def _app(name: str | None, url: str | None, tenant: str | None, schema: str) -> App:
    if name is not None:
        if tenant is not None or schema != options.SCHEMA:
            raise InvalidSetting(f"{name} already sets its tenant and schema", code="conflicting_options")
        app = load_app(name, url)
        if not session_of(app).store.embedded:
            _refuse_unready(app)
        return app
    app = App(config.database_url(url), tenant=scope(tenant), name=NAME, schema=schema)
    refuse_absent(session_of(app).store)
    _refuse_unready(app)
    return app


def _refuse_unready(app: App) -> None:
    """Raise if the database is not migrated. If it is unreachable, start anyway: the service reports it and retries."""
    with contextlib.suppress(StoreUnavailable):
        refuse_unready(session_of(app).store)


async def _print_address(app: App, address: str, no_auth: bool, as_json: bool) -> None:
    session = session_of(app)
    if as_json:
        emit({"address": address})
        return
    announce(f"Serving at {address}")
    if no_auth:
        announce("No login is required: every user of this machine may do everything.")
        return
    with contextlib.suppress(Exception):  # only a hint: the database role may not read tokens
        async with asyncio.timeout(HINT_TIMEOUT):
            tokens = await session.arun(session.store.tokens.list("*", limit=1))
        if not tokens:
            announce("No token has been issued yet: holdfast tokens issue NAME --role admin")


class TimeLimited:
    """An ASGI application whose requests share one limit for waiting on the database. It is set at shutdown."""

    def __init__(self, service: ASGIApp, wait_limit: WaitLimit) -> None:
        self._service, self._wait_limit = service, wait_limit

    def stop_waiting_in(self, seconds: float) -> None:
        """Let requests wait for the database only this long from now. A later call replaces an earlier one."""
        self._wait_limit.until = time.monotonic() + seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._service(scope, receive, send)
        wait_limit_of.set(self._wait_limit)  # for the task of this request
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._service(scope, receive, sending)
        except asyncio.CancelledError:
            if started or self._wait_limit.until == math.inf:
                raise
            from holdfast.server.problems import problem  # needs the extra `server`

            detail = "the service is shutting down; the request may or may not have been carried out"
            await problem(503, "store_unavailable", detail, error="StoreUnavailable")(scope, receive, send)
