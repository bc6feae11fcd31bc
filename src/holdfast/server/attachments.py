"""Files of jobs as downloads: the browser saves them and never displays or runs them."""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.responses import Response


def attachment(data: bytes, name: str, media_type: str = "application/octet-stream") -> Response:
    ascii_name = re.sub(r"[^A-Za-z0-9._ -]", "_", name.rsplit("/", 1)[-1]) or "file"
    return Response(
        data,
        media_type=media_type,
        headers={
            "content-disposition": f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(name, safe='')}",
            "x-content-type-options": "nosniff",
            "content-security-policy": "default-src 'none'; sandbox",
            "cache-control": "no-store",
        },
    )
