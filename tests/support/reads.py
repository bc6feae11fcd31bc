"""Every GET of the service, generated from its routes: the API, the pages and the downloads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

from fastapi import FastAPI

from holdfast.server.api import every_route
from holdfast.server.app import PAGES

ENDLESS = {"/api/v1/events/stream", "/live"}
_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


def every_read(service: FastAPI, values: Mapping[str, Sequence[str]]) -> list[str]:
    """The paths. ``values`` has those of a parameter by the part of the path before it (``jobs``, ``artifacts``);
    without any, the path names something that does not exist."""
    paths = {route.path_format for route in every_route(service) if "GET" in route.methods}
    paths |= {route.path for page in PAGES for route in page if "GET" in (route.methods or ())}
    return [filled for path in sorted(paths - ENDLESS) for filled in _filled(path, values)]


def _filled(path: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    before = [path[: match.start()].rstrip("/").rsplit("/", 1)[-1] for match in _PARAMETER.finditer(path)]
    parts = _PARAMETER.split(path)[::2]
    chosen = product(*(values.get(name, ["missing"]) for name in before))
    return ["".join(part + value for part, value in zip(parts, (*each, ""), strict=True)) for each in chosen]
