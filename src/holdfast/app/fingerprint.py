"""The fingerprint of a worker's code: equal for two processes that run the same application.

It covers the version of the application, the code of the handlers, and the source of every module of the application
that is loaded when the first worker starts: those outside of the standard library and of the installed packages, and
the packages of the handlers. A held job is tried again by a worker with a fingerprint that has not been tried.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, Final

LENGTH: Final = 16
_INSTALLED: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def fingerprint(version: str | None, handlers: Mapping[str, Callable[..., Any]]) -> str:
    digest = hashlib.sha256(repr(version).encode())
    for kind, function in sorted(handlers.items()):
        digest.update(f"{kind}\n{_text(function, set())}\n".encode("utf-8", "replace"))
    packages = frozenset(_package(function.__module__) for function in handlers.values())
    digest.update(_sources(packages - {"holdfast"}).encode())
    return digest.hexdigest()[:LENGTH]


def _package(module: str) -> str:
    return module.partition(".")[0]


def _text(value: object, seen: set[int]) -> str:
    """A function with what it was made with: its defaults, and the plain values and functions that it closes over."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType) or id(value) in seen:
        return type(value).__qualname__
    seen.add(id(value))
    made_with: list[object] = [*(getattr(value, "__defaults__", None) or ())]
    for cell in getattr(value, "__closure__", None) or ():
        with suppress(ValueError):  # a cell that is still empty
            made_with.append(cell.cell_contents)
    return "\n".join((_text_of(code), *(_text(each, seen) for each in made_with)))


def _text_of(code: CodeType) -> str:
    """The instructions of a function and of those inside it. Line numbers and names of files do not count."""
    constants = (_text_of(each) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts)
    return "\n".join((code.co_code.hex(), *code.co_names, *code.co_varnames, *constants))


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


@functools.cache
def _sources(packages: frozenset[str]) -> str:
    """A digest of the application's modules. Read once: what runs is what was loaded."""
    digest = hashlib.sha256()
    for path in sorted(set(_files(packages))):
        try:
            digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
        except OSError:  # removed since it was loaded
            digest.update(b"?")
    return digest.hexdigest()


def _files(packages: frozenset[str]) -> Iterable[str]:
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or _package(name) == "holdfast":
            continue
        if _package(name) in packages or not path.startswith(_INSTALLED):
            yield path
