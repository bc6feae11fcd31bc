"""``Bucket``: an artifact store in any S3-compatible service, with the standard library only (Signature Version 4).

Requests use path style, which every server supports. The digest of the content is signed, so that it cannot be replaced
in transit; ``Artifacts`` checks content that is read. Redirects are not followed: a signature is valid for one host.
Credentials come from the environment and are never stored.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import http.client
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, BinaryIO, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from holdfast.errors import InvalidSetting, Refused, StoreUnavailable

TIMEOUT: Final = 30.0
TRIES: Final = 3
_SAFE: Final = "-_.~"
_KEY: Final = re.compile(r"<Key>([^<]*)</Key>")


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Bucket:
    host: str
    name: str
    credentials: Credentials
    prefix: str = ""
    region: str = "us-east-1"
    secure: bool = True
    timeout: float = TIMEOUT

    @classmethod
    def of(cls, url: str, environment: Mapping[str, str]) -> Bucket:
        """``s3://bucket/prefix?region=eu-central-1&endpoint=https://minio.local:9000``."""
        parts = _parts(url)
        options = dict(parse_qsl(parts.query))
        region = options.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        region = region or "us-east-1"
        server = options.get("endpoint") or environment.get("AWS_ENDPOINT_URL_S3")
        endpoint = _parts(server or f"https://s3.{region}.amazonaws.com")
        access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
        if not parts.hostname or "@" in parts.netloc or options.keys() - {"region", "endpoint"}:
            raise InvalidSetting(
                "an S3 artifact store must be s3://bucket/prefix?region=…&endpoint=…", code="invalid_artifacts"
            )
        if (
            endpoint.scheme not in ("http", "https")
            or not endpoint.hostname
            or "@" in endpoint.netloc
            or endpoint.path.strip("/")
        ):
            raise InvalidSetting("the endpoint must be http(s)://host[:port]", code="invalid_artifacts")
        if not access or not secret:
            raise InvalidSetting(
                "the bucket needs credentials",
                code="missing_credentials",
                fix="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment.",
            )
        credentials = Credentials(access, secret, environment.get("AWS_SESSION_TOKEN") or None)
        prefix = parts.path.strip("/")
        return cls(endpoint.netloc, parts.netloc, credentials, prefix, region, endpoint.scheme == "https")

    def put(self, key: str, data: bytes) -> None:
        self._request("PUT", key, data)

    def put_file(self, key: str, path: Path, digest: str) -> None:
        self._request("PUT", key, path, digest=digest)

    def get(self, key: str) -> bytes | None:
        status, body = self._request("GET", key, missing_ok=True)
        return None if status == 404 else body

    @contextmanager
    def get_file(self, key: str) -> Iterator[Path | None]:
        with tempfile.NamedTemporaryFile(prefix="holdfast-artifact-") as file:
            status, _ = self._request("GET", key, missing_ok=True, into=file)
            file.flush()
            yield None if status == 404 else Path(file.name)

    def delete(self, key: str) -> None:
        self._request("DELETE", key, missing_ok=True)

    def exists(self, key: str) -> bool:
        return self._request("HEAD", key, missing_ok=True)[0] != 404

    def size(self, key: str) -> int | None:
        status, length = self._request("HEAD", key, missing_ok=True)
        return int(length) if status != 404 and length.isdigit() else None

    def keys(self) -> Iterator[str]:
        """All keys in alphabetical order, read in pages of a thousand."""
        prefix, after = f"{self.prefix}/" if self.prefix else "", ""
        while True:
            params = {"list-type": "2", "prefix": prefix} | ({"start-after": after} if after else {})
            query = "&".join(f"{name}={quote(params[name], safe=_SAFE)}" for name in sorted(params))
            page = [html.unescape(each) for each in _KEY.findall(self._request("GET", "", query=query)[1].decode())]
            yield from (key.removeprefix(prefix) for key in page)
            if not page or page[-1] <= after:  # a server that ignores start-after would repeat the first page for ever
                return
            after = page[-1]

    def _request(
        self,
        method: str,
        key: str,
        data: bytes | Path = b"",
        *,
        missing_ok: bool = False,
        digest: str | None = None,
        query: str = "",
        into: IO[bytes] | None = None,
    ) -> tuple[int, bytes]:
        """Send a request and return status and body (the length for HEAD); a body can be written ``into`` a file. Every
        request can be repeated safely: keys are derived from the content."""
        last = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(random.uniform(0.05, 0.15) * 2**attempt)
            try:
                status, body = self._once(method, key, data, digest, query, into)
            except (OSError, http.client.HTTPException) as error:
                last = f"{type(error).__name__}: {error}"
                continue
            if status < 300 or (status == 404 and missing_ok):
                return status, body
            if status < 500 and status != 429:
                raise Refused(f"the artifact store responded {status} to {method}", code="artifacts_refused")
            last = f"it responded {status} to {method}"
        raise StoreUnavailable(f"the artifact store cannot be used: {last}", code="artifacts_away")

    def _once(
        self, method: str, key: str, data: bytes | Path, digest: str | None, query: str, into: IO[bytes] | None
    ) -> tuple[int, bytes]:
        full = self.name if query else "/".join(part for part in (self.name, self.prefix, key) if part)
        path = "/" + quote(full, safe="/" + _SAFE)
        connect = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = connect(self.host, timeout=self.timeout)
        with ExitStack() as stack:
            stack.callback(connection.close)
            now, content = datetime.now(UTC), data if isinstance(data, bytes) else b""
            headers = signed(method, self.host, path, content, self.region, self.credentials, now, query, digest)
            body: bytes | BinaryIO = content
            if isinstance(data, Path):
                headers["content-length"] = str(data.stat().st_size)
                body = stack.enter_context(data.open("rb"))
            connection.request(
                method, f"{path}?{query}" if query else path, body=body if method == "PUT" else None, headers=headers
            )
            response = connection.getresponse()
            length = response.headers.get("content-length", "")
            if into is not None and response.status < 300:
                into.seek(0)
                into.truncate()
                shutil.copyfileobj(response, into, 1 << 20)
                if length and into.tell() != int(length):
                    raise ConnectionError("the response ended early")
                return response.status, b""
            content = response.read()
            return response.status, length.encode() if method == "HEAD" else content


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises with the text in place of a port, which may be part of a password
    except ValueError:
        raise InvalidSetting(
            "the URL of an artifact store cannot be read",
            code="invalid_artifacts",
            fix="Use s3://bucket/prefix?region=…&endpoint=https://host:port.",
        ) from None
    return parts


def signed(
    method: str,
    host: str,
    path: str,
    data: bytes,
    region: str,
    credentials: Credentials,
    now: datetime,
    query: str = "",
    digest: str | None = None,
) -> dict[str, str]:
    """The headers of a signed request. ``path`` is encoded, ``query`` sorted and encoded. ``digest`` is the SHA-256 of
    content that is not in memory."""
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": host, "x-amz-content-sha256": digest or hashlib.sha256(data).hexdigest(), "x-amz-date": moment}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{headers['x-amz-content-sha256']}"
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
