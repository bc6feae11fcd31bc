"""What the bench runs: jobs that do nothing, so that all that is measured is Holdfast and the database."""

from __future__ import annotations

from holdfast.app import App
from holdfast.kind import Kind

QUEUE = "holdfast-bench"
TARGET = "holdfast.cli.bench.kinds:worker_app"


def declare(app: App) -> Kind[[int], None]:
    @app.job("holdfast.bench", queue=QUEUE)
    async def nothing(number: int) -> None:
        pass

    return nothing


def worker_app() -> App:
    """For the worker process; the database comes by the environment."""
    app = App(name="holdfast bench")
    declare(app)
    return app
