"""A small S3 server on loopback that checks signatures with an independent implementation of the specification."""

from __future__ import annotations

import hashlib
import hmac
import html
from urllib.parse import parse_qsl, unquote

from tests.support.http_server import Page, Web

ACCESS, SECRET, REGION = "AKIDTEST", "secret-of-the-test", "eu-test-1"


class _Object(Page):
    server: S3Server

    def respond(self, body: bytes) -> None:
        if self.server.failures:
            self.server.failures -= 1
            return self.answer(503)
        if not self._signed(body):
            return self.answer(403)
        path, _, query = self.path.partition("?")
        if "list-type=2" in query:
            return self.answer(200, self._listing(path, dict(parse_qsl(query))))
        content = self.server.objects.get(self.path)
        if self.command == "PUT":
            self.server.objects[self.path] = body
            return self.answer(200)
        if self.command == "DELETE":
            self.server.objects.pop(self.path, None)
            return self.answer(204)
        return self.answer(404) if content is None else self.answer(200, content)

    def _listing(self, path: str, query: dict[str, str]) -> bytes:
        """Two keys per page, so that there is more than one page."""
        keys = sorted(unquote(key).removeprefix(f"{path}/") for key in self.server.objects)
        wanted = [key for key in keys if key.startswith(query["prefix"]) and key > query.get("start-after", "")]
        rows = "".join(f"<Contents><Key>{html.escape(key)}</Key></Contents>" for key in wanted[:2])
        return f"<ListBucketResult>{rows}</ListBucketResult>".encode()

    def _signed(self, body: bytes) -> bool:
        scheme, _, rest = self.headers.get("authorization", "").partition(" ")
        parts = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
        names = parts.get("SignedHeaders", "").split(";")
        scope = parts.get("Credential", "").split("/")
        if scheme != "AWS4-HMAC-SHA256" or scope[0] != ACCESS or scope[2:] != [REGION, "s3", "aws4_request"]:
            return False
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names):
            return False
        if self.headers["x-amz-content-sha256"] != hashlib.sha256(body).hexdigest():
            return False
        lines = "".join(f"{name}:{' '.join(self.headers[name].split())}\n" for name in sorted(names))
        path, _, query = self.path.partition("?")
        digest = self.headers["x-amz-content-sha256"]
        request = "\n".join([self.command, path, query, lines, ";".join(sorted(names)), digest])
        text = "\n".join(
            [scheme, self.headers["x-amz-date"], "/".join(scope[1:]), hashlib.sha256(request.encode()).hexdigest()]
        )
        key = b"AWS4" + SECRET.encode()
        for part in scope[1:]:
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return hmac.compare_digest(hmac.new(key, text.encode(), hashlib.sha256).hexdigest(), parts["Signature"])


class S3Server(Web):
    page = _Object

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.failures = 0  # the number of next answers that are 503
