"""The kinds that every app has without declaring them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.connectors.webhook import PolicyOf, SecretOf, deliverer
from holdfast.domain.endpoints import DELIVER, DELIVERY_RETRY
from holdfast.domain.redaction import Redactor
from holdfast.kind import Options


def built_in(
    secret_of: SecretOf, policy_of: PolicyOf, redact: Redactor
) -> Iterator[tuple[str, Callable[..., Any], Options]]:
    """Name, handler and options of each."""
    yield DELIVER, deliverer(secret_of, policy_of, redact), Options(retry=DELIVERY_RETRY)
