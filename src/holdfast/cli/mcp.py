"""``holdfast mcp``: the MCP server for assistants, on stdin and stdout or over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from holdfast import config
from holdfast.app import App
from holdfast.app.internals import session_of
from holdfast.cli import options, output
from holdfast.cli.output import announce, emit
from holdfast.cli.run_worker import on_signals, run_to_end
from holdfast.cli.serve import address_of, is_loopback, listen, missing_extra, refuse_unsafe, web_server
from holdfast.cli.session import NAME, refuse_unready, scope
from holdfast.engine.declared import Help
from holdfast.errors import InvalidSetting, Refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Send
    from starlette.types import Scope as ASGIScope

    from holdfast.server.mcp_server import Assistants

PATH = "/mcp"
LIBRARIES = ("mcp", "mcp_types", "httpx2", "fastapi", "starlette", "uvicorn", "pydantic", "jinja2", "sse_starlette")

Token = Annotated[
    str | None, Help("API token for changes; HOLDFAST_API_TOKEN keeps it out of the process list.", "TOKEN")
]
Http = Annotated[str | None, Help("Serve over HTTP on this address, for example 127.0.0.1:8001.", "HOST:PORT")]


def mcp(
    url: options.Url = None,
    token: Token = None,
    http: Http = None,
    no_auth: Annotated[bool, Help("With --http: read without a token; allowed only on a loopback address.")] = False,
    tenant: options.Tenant = None,
    all_tenants: options.AllTenants = False,
    schema: options.Schema = options.SCHEMA,
    log_level: options.LogLevel = options.Level.WARNING,
    as_json: Annotated[bool, Help("Log JSON lines, and print the address of --http as JSON.", option="--json")] = False,
) -> None:
    """Serve the Model Context Protocol (MCP), with which an assistant reads and operates jobs.

    Without a token, the assistant only reads. With one, it also cancels, redrives, pauses and decides approvals, as far
    as the scopes of the token allow. Over HTTP, each client sends its own token.
    """
    address = None if http is None else _address(http)
    if http is not None and token is not None:
        raise InvalidSetting(
            "--token cannot be used with --http: each client sends its own",
            code="conflicting_options",
            fix="Pass only one of them.",
        )
    if http is None and no_auth:
        raise InvalidSetting("--no-auth is only for --http", code="conflicting_options")
    if address is not None:
        refuse_unsafe(address[0], local=no_auth)
    output.set_up(log_level.value, as_json=as_json)
    text = config.service_token(token) if http is None else ""
    reads = scope(tenant, all_tenants)
    app = App(config.database_url(url), tenant=scope(tenant), name=NAME, schema=schema)
    refuse_unready(session_of(app).store)
    headers = {"authorization": f"Bearer {text}"} if text else {}
    if text and tenant is not None:  # for a token of all tenants; others have their own
        headers["holdfast-tenant"] = reads
    assistants = _assistants(app, headers, None if text or not (http is None or no_auth) else reads)

    async def run() -> None:
        try:
            async with assistants.running():
                if address is None:
                    await _over_stdio(assistants, bool(text))
                else:
                    await _over_http(assistants, *address, no_auth=no_auth, as_json=as_json)
        finally:
            await app.aclose()

    run_to_end(run())


def _assistants(app: App, headers: dict[str, str], reads: str | None) -> Assistants:
    try:
        from holdfast.server.mcp_server import Assistants, read_only
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        raise missing_extra("mcp") from error
    return Assistants(app, headers, None if reads is None else read_only(app, reads))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSetting(
            f"{text[:100]!r} is not an address to listen on", code="invalid_address", fix="Write 127.0.0.1:8001."
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


async def _over_stdio(assistants: Assistants, has_token: bool) -> None:
    from mcp.server.stdio import stdio_server

    if has_token and await assistants.identify(assistants.headers) is None:
        raise Refused(
            "the token is unknown, expired or revoked",
            code="unauthenticated",
            fix="Issue another one: holdfast tokens issue NAME",
        )
    server = assistants.server
    async with stdio_server() as (reading, writing):
        serving = asyncio.create_task(server.run(reading, writing, server.create_initialization_options()))
        on_signals(lambda: _cancel(serving), lambda: _cancel(serving))
        await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _over_http(assistants: Assistants, host: str, port: int, *, no_auth: bool, as_json: bool) -> None:
    from mcp.server.transport_security import TransportSecuritySettings

    # Without tokens, a page that a browser shows must not reach the server under another name (DNS rebinding).
    names = ("127.0.0.1", "localhost", "[::1]")
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=no_auth and is_loopback(host),
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"http://{name}:*" for name in names],
    )
    web = assistants.server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, transport_security=security
    )
    listening = listen(host, port)
    server = web_server(Authenticated(web, assistants))

    def stop() -> None:
        server.should_exit = True

    on_signals(stop, stop)
    address = address_of(listening).rstrip("/") + PATH
    if as_json:
        emit({"address": address})
    else:
        announce(f"Serving at {address}")
    await server.serve([listening])


class Authenticated:
    """An ASGI application that answers only requests of known callers."""

    def __init__(self, inner: ASGIApp, assistants: Assistants) -> None:
        self._inner, self._assistants = inner, assistants

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]}
            refusal = await self._refusal(headers)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._inner(scope, receive, send)

    async def _refusal(self, headers: dict[str, str]) -> Any:
        from holdfast.errors import HoldfastError
        from holdfast.server.problems import problem, refusal_of

        try:
            if await self._assistants.identify(headers) is not None:
                return None
        except HoldfastError as error:
            return refusal_of(error)
        fix = "Send the header Authorization: Bearer hf_…."
        response = problem(401, "unauthenticated", "a valid API token is required", fix=fix)
        response.headers["WWW-Authenticate"] = "Bearer"
        return response
