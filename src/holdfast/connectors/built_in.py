"""The kinds that every app has without declaring them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.arguments import CheckedSignature, Signature
from holdfast.connectors.http import REQUEST, check_request, requester
from holdfast.connectors.reach import Reach
from holdfast.connectors.report import GENERATE, Sources, check_report, generator
from holdfast.connectors.webhook import deliverer
from holdfast.domain.endpoints import DELIVER, DELIVERY_RETRY
from holdfast.kind import Options

Made = tuple[str, Callable[..., Any], Signature, Options]


def built_in(reach: Reach, reports: Sources) -> Iterator[Made]:
    """Name, handler, signature and options of each."""
    deliver = deliverer(reach)
    yield DELIVER, deliver, Signature(deliver, DELIVER, skip=1), Options(retry=DELIVERY_RETRY)
    request = requester(reach)
    yield REQUEST, request, CheckedSignature(request, REQUEST, check_request, skip=1), Options()
    generate = generator(reports)
    yield GENERATE, generate, CheckedSignature(generate, GENERATE, check_report, skip=1), Options()
