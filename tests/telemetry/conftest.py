"""The app on every store, as in tests/app."""

from __future__ import annotations

from tests.app.conftest import app, new_app
from tests.cli.conftest import bare

__all__ = ["app", "bare", "new_app"]
