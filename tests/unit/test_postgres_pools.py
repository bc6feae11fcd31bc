"""Connection pools at the end of their event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import closing

import pytest

from holdfast.features.postgres import PostgresStore


@pytest.mark.req("SC-13")
def test_loop_ends_while_its_pool_connects() -> None:
    """The server accepts the connection and does not respond."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def leave_early() -> None:
            with closing(PostgresStore(f"postgresql://nobody@127.0.0.1:{port}/none")) as store:
                reading = asyncio.create_task(store.aschema())
                connection, _ = await asyncio.to_thread(server.accept)
                reading.cancel()
                await asyncio.wait({reading})
                with connection:
                    connection.settimeout(5)
                    assert connection.recv(1), "the pool connects"
                    connections.append(connection.dup())

        connections: list[socket.socket] = []
        thread = threading.Thread(target=asyncio.run, args=(leave_early(),), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        for connection in connections:
            connection.close()
