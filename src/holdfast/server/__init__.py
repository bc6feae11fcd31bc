"""The HTTP API and the dashboard: one ASGI app."""

from holdfast.errors import needs_extra

with needs_extra("the HTTP service", "server"):
    import fastapi  # noqa: F401
    import jinja2  # noqa: F401
    import sse_starlette  # noqa: F401
