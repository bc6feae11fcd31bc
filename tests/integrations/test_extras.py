"""An integration whose extra is not installed raises an error with the command that installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = [
    ("holdfast.integrations.fastapi", "fastapi", "fastapi"),
    ("holdfast.integrations.starlette", "starlette", "server"),
    ("holdfast.integrations.flask", "flask", "flask"),
    ("holdfast.integrations.flask", "click", "flask"),
    ("holdfast.integrations.litestar", "litestar", "litestar"),
    ("holdfast.integrations.sqlalchemy", "sqlalchemy", "sqlalchemy"),
    ("holdfast.integrations.alembic", "alembic", "alembic"),
    ("holdfast.integrations.sentry", "sentry_sdk", "sentry"),
    ("holdfast.integrations.structlog", "structlog", "structlog"),
    ("holdfast.integrations.pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ("holdfast.integrations.openai_agents", "agents", "openai-agents"),
    ("holdfast.server.app", "fastapi", "server"),
    ("holdfast.server.app", "jinja2", "server"),
    ("holdfast.telemetry.prometheus", "prometheus_client", "prometheus"),
]

SCRIPT = """
import importlib, sys
import holdfast
for module, library, extra in {modules!r}:
    loaded = set(sys.modules)
    sys.modules[library] = None
    try:
        importlib.import_module(module)
    except holdfast.errors.InvalidSetting as error:
        print(library, error.code, error.fix)
    except ImportError as error:
        print(library, repr(error))
    for name in set(sys.modules) - loaded | {{library}}:
        del sys.modules[name]
"""


@pytest.mark.req("DP-22")
def test_a_missing_extra_is_an_error_with_the_pip_command() -> None:
    # In one process without any of the libraries loaded, because starting one takes longer than all of the imports.
    script = SCRIPT.format(modules=MODULES)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = [f"{library} missing_extra pip install 'holdfast[{extra}]'" for _, library, extra in MODULES]
    assert done.stdout.splitlines() == expected
