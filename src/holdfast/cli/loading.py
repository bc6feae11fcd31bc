"""From ``module:app`` to the App, with errors that say what to put right."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from holdfast import config
from holdfast.app import App
from holdfast.cli.session import refuse_unready
from holdfast.domain.errors import HoldfastError, InvalidSetting

FORM = "Write it as module:attribute, for example shop.jobs:app."


def load_app(name: str, url: str | None = None) -> App:
    """Import it from the current directory or the path. A function of no arguments is called for its App.

    ``url`` is for an app that leaves the database to its environment.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if url is not None:
        os.environ[config.URL_VARIABLE] = url
    module_name, _, attribute = name.partition(":")
    if not module_name or name.endswith(":") or module_name.startswith("."):
        raise InvalidSetting(f"{name!r} does not name an app", code="invalid_app", fix=FORM)
    app = _made(_found(_imported(module_name), attribute or "app", name), name)
    if url is not None and app.store.url != url:
        raise InvalidSetting(f"{name} names a database of its own", code="conflicting_options", fix="Leave out --url.")
    return app


def load_runnable(name: str, url: str | None) -> App:
    """An app to run jobs of: it has some, and its database is there."""
    app = load_app(name, url)
    if not app.kinds:
        raise InvalidSetting(f"{name} declares no jobs", code="no_kinds", fix="Declare some with @app.job().")
    if not app.store.embedded:  # an embedded one is made, or brought up to date, as a program's would be
        refuse_unready(app.store)
    return app


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except HoldfastError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise InvalidSetting(
            f"there is no module {name!r}",
            code="module_not_found",
            fix="Run this in the directory that holds it, or install it.",
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _found(module: ModuleType, attribute: str, name: str) -> object:
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
            hint = f"It has these apps: {', '.join(apps)}." if apps else FORM
            raise InvalidSetting(
                f"module {module.__name__!r} has no {attribute!r}", code="app_not_found", fix=hint
            ) from None
    return found


def _made(found: object, name: str) -> App:
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        try:
            found = found()
        except HoldfastError:
            raise
        except Exception as error:
            raise _broken(name, error) from error
    if not isinstance(found, App):
        raise InvalidSetting(f"{name} is {_a(type(found).__name__)}, not an App", code="not_an_app", fix=FORM)
    return found


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _broken(name: str, error: BaseException) -> InvalidSetting:
    """The user's own error, with the place where it came up."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return InvalidSetting(
        f"importing {name} failed: {type(error).__name__}: {error}{where}",
        code="import_failed",
        fix=f"The whole traceback: python -c 'import {name.partition(':')[0]}'",
    )
