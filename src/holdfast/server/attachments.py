"""Files that jobs made, as downloads: a browser saves them, and never shows or runs them."""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.responses import Response


def attachment(data: bytes, name: str, media_type: str = "application/octet-stream") -> Response:
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name.rsplit("/", 1)[-1]) or "file"
    return Response(
        data,
        media_type=media_type,
        headers={
            "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
            "x-content-type-options": "nosniff",
            "content-security-policy": "default-src 'none'; sandbox",
            "cache-control": "no-store",
        },
    )
