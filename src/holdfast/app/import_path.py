"""Import an ``App`` by its path, ``module:app``, with errors that tell what to correct."""

from __future__ import annotations

import importlib
import inspect
import traceback
from pathlib import Path
from types import ModuleType

from holdfast.app import App
from holdfast.errors import HoldfastError, InvalidSetting

FORM = "Write it as module:attribute, for example shop.jobs:app."


def find_app(name: str) -> App:
    """Import the module and return the ``App`` with that name. A function without parameters is called to get its app.

    Raises ``InvalidSetting``.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or name.endswith(":") or module_name.startswith("."):
        raise InvalidSetting(f"{name!r} does not name an app", code="invalid_app", fix=FORM)
    return _as_app(_lookup(_import(module_name), attribute or "app"), name)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except HoldfastError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise InvalidSetting(
            f"module {name!r} not found",
            code="module_not_found",
            fix="Run this in the directory that holds it, or install it.",
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _lookup(module: ModuleType, attribute: str) -> object:
    value: object = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
            hint = f"It has these apps: {', '.join(apps)}." if apps else FORM
            raise InvalidSetting(
                f"module {module.__name__!r} has no {attribute!r}", code="app_not_found", fix=hint
            ) from None
    return value


def _as_app(value: object, name: str) -> App:
    if inspect.isfunction(value) and not inspect.signature(value).parameters:
        try:
            value = value()
        except HoldfastError:
            raise
        except Exception as error:
            raise _broken(name, error) from error
    if not isinstance(value, App):
        raise InvalidSetting(
            f"{name} is {_with_article(type(value).__name__)}, not an App", code="not_an_app", fix=FORM
        )
    return value


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _broken(name: str, error: BaseException) -> InvalidSetting:
    """Return an error that names the exception of the imported module, with its file and line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return InvalidSetting(
        f"importing {name} failed: {type(error).__name__}: {error}{where}",
        code="import_failed",
        fix=f"See the full traceback: python -c 'import {name.partition(':')[0]}'",
    )
