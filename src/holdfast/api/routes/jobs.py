"""Jobs: enqueue, list, show, and what is done to them."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/jobs", tags=["jobs"])
