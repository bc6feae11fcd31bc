"""The kinds that every app has without declaring them: HTTP requests, reports, webhooks, expansion of workflows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.features.connectors.http_request import REQUEST, check_request, http_request_handler
from holdfast.features.connectors.outbound import Outbound
from holdfast.features.connectors.report import GENERATE, Sources, check_report, report_handler
from holdfast.features.webhooks.delivery import deliverer
from holdfast.features.webhooks.model import DELIVER, DELIVERY_RETRY
from holdfast.features.workflows.expansion import expand
from holdfast.features.workflows.map_template import MAP
from holdfast.kind import Options
from holdfast.steps.signature import CheckedSignature, Signature

ALIASES: Final = {f"connector.{name}": name for name in (DELIVER, REQUEST, GENERATE)}
"""Other names of the built-in kinds. A job that is enqueued by such a name gets the kind's own name."""

BuiltIn = tuple[str, Callable[..., Any], Signature, Options]

# Each app has its own handlers, but their signatures are the same: they are inspected once and not for every app.
_signatures: dict[str, Signature] = {}


def built_in(reach: Outbound, reports: Sources) -> Iterator[BuiltIn]:
    """Yield the name, handler, signature and options of each built-in kind."""
    deliver, request, generate = deliverer(reach), http_request_handler(reach), report_handler(reports)
    if not _signatures:
        _signatures.update(
            {
                DELIVER: Signature(deliver, DELIVER, skip=1),
                REQUEST: CheckedSignature(request, REQUEST, check_request, skip=1),
                GENERATE: CheckedSignature(generate, GENERATE, check_report, skip=1),
                MAP: Signature(expand, MAP, skip=1),
            }
        )
    yield DELIVER, deliver, _signatures[DELIVER], Options(retry=DELIVERY_RETRY)
    yield REQUEST, request, _signatures[REQUEST], Options()
    yield GENERATE, generate, _signatures[GENERATE], Options()
    yield MAP, expand, _signatures[MAP], Options()
