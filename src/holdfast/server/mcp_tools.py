"""The tools of the MCP server, from the routes of the HTTP API: which, their texts, inputs and scopes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from holdfast.features.tokens.model import Scope
from holdfast.server.api import every_route, scope_of
from holdfast.server.parameters import PREFIX

READS: Final = (
    *("show_health", "show_statistics", "show_activity", "list_jobs", "count_jobs", "show_job", "why_job"),
    *("job_history", "job_attempts", "job_steps", "job_progress", "job_liveness", "job_chain"),
    *("list_dead_letters", "show_dead_letters", "list_dead_jobs", "list_queue_settings", "list_pauses", "list_limits"),
    *("list_schedules", "show_schedule", "schedule_history", "preview_schedule", "list_workers", "list_approvals"),
    *("show_approval", "list_workflows", "show_workflow", "list_versions", "list_actions"),
)
"""The operations that assistants read with, by the names of their routes."""
WRITES: Final = {
    "cancel_job": "show_job",
    "redrive_job": "show_job",
    "set_pause": "count_jobs",
    "remove_pause": "count_jobs",
    "pause_schedule": "show_schedule",
    "resume_schedule": "show_schedule",
    "approve": "show_approval",
    "deny": "show_approval",
}
"""The operations that change something, and the one that shows what each would change."""
DESTRUCTIVE: Final = frozenset({"cancel_job", "deny", "approve"})
WITHHELD: Final = frozenset({"everything", "Idempotency-Key"})
"""Inputs that assistants do not get: a pause of everything stops maintenance too."""
MOST_JOBS: Final = 100
"""Jobs that one call may change."""
MOST_RESULTS, RESULTS = 50, 20


@dataclass(frozen=True, slots=True)
class Tool:
    """An operation that is offered. ``inputs`` are the names of its inputs by their place in the request."""

    name: str
    method: str
    path: str
    about: str
    scope: Scope
    schema: dict[str, Any]
    places: frozenset[str]
    query: frozenset[str]
    body: frozenset[str]

    @property
    def writes(self) -> bool:
        return self.name in WRITES

    @property
    def per_job(self) -> bool:
        """Whether a call changes each of several jobs, with a request for each."""
        return self.writes and "job_id" in self.places

    @property
    def below(self) -> str:
        """Its path below that of the API."""
        return self.path.removeprefix(f"{PREFIX}/")

    @property
    def is_resource(self) -> bool:
        return not self.writes and not set(self.schema["required"]) - self.places

    def described(self) -> types.Tool:
        about = self.about
        if self.writes:
            about += f" Answers with a preview; repeat with confirm: true to do it. Needs the scope {self.scope}."
        hints = types.ToolAnnotations(
            read_only_hint=not self.writes, destructive_hint=self.name in DESTRUCTIVE, open_world_hint=False
        )
        return types.Tool(name=self.name, description=about, input_schema=self.schema, annotations=hints)


def tools_of(service: FastAPI) -> dict[str, Tool]:
    """The tools, from the routes of the service."""
    offered = [route for route in every_route(service) if route.name in READS or route.name in WRITES]
    document = get_openapi(title="Holdfast", version="1", routes=offered)
    schemas = document.get("components", {}).get("schemas", {})
    tools = {}
    for route in offered:
        (method,) = route.methods
        operation = document["paths"][route.path_format][method.lower()]
        scope = scope_of(route)
        assert scope is not None, route.name
        tools[route.name] = _tool(route.name, method, route.path_format, scope, operation, schemas)
    order = [*READS, *WRITES]
    return {name: tools[name] for name in order}


def _tool(
    name: str, method: str, path: str, scope: Scope, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Tool:
    properties: dict[str, Any] = {}
    required: list[str] = []
    found: dict[str, set[str]] = {"path": set(), "query": set(), "body": set()}
    for each in operation.get("parameters", ()):
        if each["name"] not in WITHHELD and each["in"] in found:
            properties[each["name"]] = {**each["schema"], "description": each.get("description", "")}
            required += [each["name"]] if each.get("required") else []
            found[each["in"]].add(each["name"])
    if "requestBody" in operation:
        body = _body(operation["requestBody"]["content"]["application/json"]["schema"], schemas)
        own = {name: schema for name, schema in body["properties"].items() if name not in WITHHELD}
        properties |= own
        required += [name for name in body.get("required", ()) if name in own]
        found["body"] |= own.keys()
    if "limit" in properties:
        properties["limit"] = {**properties["limit"], "maximum": MOST_RESULTS, "default": RESULTS}
    if name in WRITES:
        if "job_id" in found["path"]:
            one = properties.pop("job_id")
            required[required.index("job_id")] = "job_ids"
            ids = {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_JOBS, "description": "Ids of jobs."}
            properties = {"job_ids": ids, **properties}
        properties["confirm"] = {
            "type": "boolean",
            "default": False,
            "description": "Do it, after the user has agreed to the preview of the same call.",
        }
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    about = " ".join(operation.get("description", "").split())
    places, query, body_names = (frozenset(names) for names in found.values())
    return Tool(name, method, path, about, scope, _whole(schema, schemas), places, query, body_names)


def _body(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """The object in a schema: it may be a reference, and optional."""
    for each in (schema, *schema.get("anyOf", ())):
        if "$ref" in each:
            return schemas[each["$ref"].rpartition("/")[2]]
    return schema


def _whole(schema: dict[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with what it refers to."""
    definitions: dict[str, Any] = {}
    missing = [schema]
    while missing:
        text = json.dumps(missing.pop())
        for name in schemas:
            if name not in definitions and f'"#/components/schemas/{name}"' in text:
                definitions[name] = schemas[name]
                missing.append(schemas[name])
    whole = schema | ({"$defs": definitions} if definitions else {})
    moved: dict[str, Any] = json.loads(json.dumps(whole).replace('"#/components/schemas/', '"#/$defs/'))
    return moved
