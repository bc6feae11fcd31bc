"""/agents, /executors."""

from __future__ import annotations

from holdfast.features.agents.operations import Agents, Executors
from holdfast.server.derived import routes

router = routes("agents", Agents)
executor_router = routes("executors", Executors)
