"""Model requests and tool calls of agents have the attributes of the GenAI conventions (HF-21), and no contents."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import SpanKind

from holdfast import App
from tests.integrations.agents.support_desk import support
from tests.support.spans import Recorded, attributes, recorded
from tests.support.workers import work_off

pytestmark = pytest.mark.req("HF-21")
__all__ = ["recorded"]


@pytest.mark.parametrize("framework", ["pydantic", pytest.param("openai", marks=pytest.mark.slow)])
def test_model_requests_and_tool_calls(app: App, recorded: Recorded, framework: str) -> None:
    calls: list[str] = []
    agent: Any
    if framework == "pydantic":
        agent = support(app, calls.append)
    else:  # takes a second to import
        agent = importlib.import_module("tests.integrations.agents.refund_desk").refunds(app, calls.append)
    handle = agent.enqueue("Refund order 7")
    work_off(app)
    (approval,) = app.approvals.list()
    app.approvals.approve(approval.id, by="ada", data={"amount": 20})
    work_off(app)
    assert handle.result(timeout=5) == "refunded 20"

    spans = recorded.spans.get_finished_spans()
    known = {getattr(gen_ai, name) for name in dir(gen_ai) if name.isupper()}
    for span in spans:
        assert {name for name in attributes(span) if name.startswith("gen_ai.")} <= known
        assert "Refund order" not in span.to_json()
    requests = [s for s in spans if attributes(s).get(gen_ai.GEN_AI_OPERATION_NAME) == "chat"]
    assert len(requests) == len([call for call in calls if call.startswith("model")]) == 3
    for span in requests:
        about = attributes(span)
        assert span.kind is SpanKind.CLIENT
        assert about[gen_ai.GEN_AI_AGENT_NAME] == "support"
        assert about[gen_ai.GEN_AI_PROVIDER_NAME] == ("function" if framework == "pydantic" else "openai")
        assert about[gen_ai.GEN_AI_USAGE_INPUT_TOKENS] + about[gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS] > 20
        assert span.name == " ".join(["chat", *filter(None, [about.get(gen_ai.GEN_AI_REQUEST_MODEL)])])
    tools = [s for s in spans if attributes(s).get(gen_ai.GEN_AI_OPERATION_NAME) == "execute_tool"]
    assert Counter(s.name for s in tools) == {"execute_tool lookup": 2, "execute_tool refund": 1}
    assert {attributes(s)[gen_ai.GEN_AI_TOOL_CALL_ID] for s in tools} == {"call-a", "call-b", "call-c"}
    assert [s.name for s in spans if s.name.startswith("approval")] == ["approval refund"]

    points = recorded.points()
    assert sum(point.count for point in points[gen_ai_metrics.GEN_AI_CLIENT_OPERATION_DURATION]) == 3
    sums = {p.attributes[gen_ai.GEN_AI_TOKEN_TYPE]: p.sum for p in points[gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE]}
    assert sum(sums.values()) == 219
