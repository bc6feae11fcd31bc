"""The app on every store, as in tests/app."""

from __future__ import annotations

from tests.app.conftest import app, new_app, url

__all__ = ["app", "new_app", "url"]
