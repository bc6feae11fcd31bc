"""Messages as the providers of inbound webhooks sign them."""

from __future__ import annotations

import hashlib
import hmac

from holdfast import webhooks

NOW = 1_800_000_000.0
SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


def signed(provider: str, body: bytes, secret: str, *, now: float = NOW, id: str = "msg_1") -> dict[str, str]:
    """The headers of a message."""

    def hexadecimal(text: bytes) -> str:
        return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()

    stamp = str(int(now))
    match provider:
        case "standard":
            return webhooks.sign(secret, id, body, now=now)
        case "github":
            return {"x-hub-signature-256": "sha256=" + hexadecimal(body), "x-github-event": "push"}
        case "stripe":
            signature = hexadecimal(stamp.encode() + b"." + body)
            return {"stripe-signature": f"t={stamp},v1={'0' * 64},v1={signature},v0={'1' * 64}"}
    signature = hexadecimal(b"v0:" + stamp.encode() + b":" + body)
    return {"x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={signature}"}
