"""Files of jobs as downloads: the browser saves them and never displays or runs them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from typing import IO
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from holdfast.stores.flow import read_slowly

CHUNK = 256 * 1024


async def attachment(read: Callable[[], bytes], name: str, media_type: str = "application/octet-stream") -> Response:
    """The response with the bytes that ``read`` returns. A large file is sent from disk, piece by piece: clients may be
    slow, and there may be many."""
    ascii_name = re.sub(r"[^A-Za-z0-9._ -]", "_", name.rsplit("/", 1)[-1]) or "file"
    headers = {
        "content-disposition": f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(name, safe='')}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; sandbox",
        "cache-control": "no-store",
    }
    contents = await read_slowly(lambda: _spooled(read()))
    if isinstance(contents, bytes):
        return Response(contents, media_type=media_type, headers=headers)
    file, size = contents
    return StreamingResponse(_pieces(file), media_type=media_type, headers=headers | {"content-length": str(size)})


def _spooled(data: bytes) -> bytes | tuple[IO[bytes], int]:
    if len(data) <= CHUNK:
        return data
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it has been sent
    file.write(data)
    file.seek(0)
    return file, len(data)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(CHUNK):
            yield piece
