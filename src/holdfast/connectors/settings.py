"""What ``app.command`` takes, and what becomes of it: a function with a signature, options, and a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from holdfast.connectors.argv import builder
from holdfast.connectors.command import Program
from holdfast.engine.job import DEFAULT_RETRY
from holdfast.engine.retry import RetryPolicy, as_policy
from holdfast.engine.units import Duration, Size, seconds
from holdfast.errors import InvalidSetting
from holdfast.kind import Options


class CommandSettings(TypedDict, total=False):
    """``fields`` gives the types of a template's fields, which are text or numbers else. The rest is in the guide."""

    fields: Mapping[str, Any]
    queue: str
    priority: int
    retry: RetryPolicy | str
    timeout: Duration
    tags: Sequence[str]
    limit_key: str | None
    resources: Sequence[str]
    cwd: str | os.PathLike[str]
    env: Mapping[str, str]
    inherit: Sequence[str]
    stdin: Literal["none", "payload"]
    log_dir: str | os.PathLike[str]
    log_limit: Size
    ok_exit_codes: Sequence[int]
    reject_exit_codes: Sequence[int]
    kill_after: Duration


def command_parts(
    name: str, argv: Sequence[str] | Callable[..., Sequence[str]], settings: CommandSettings
) -> tuple[Callable[..., Sequence[str]], Options, float | None, Program]:
    unknown = settings.keys() - CommandSettings.__annotations__.keys()
    if unknown:
        raise InvalidSetting(f"unknown options: {', '.join(sorted(unknown))}", code="unknown_option")
    if callable(argv):
        if "fields" in settings:
            raise InvalidSetting("a function says by itself what its fields are", code="conflicting_options")
        function: Callable[..., Sequence[str]] = argv
    else:
        function = builder(name, argv, settings.get("fields"))
    timeout = settings.get("timeout")
    options = Options(
        queue=settings.get("queue", "default"),
        priority=settings.get("priority", 0),
        tags=settings.get("tags", ()),
        limit_key=settings.get("limit_key"),
        resources=settings.get("resources", ()),
        retry=as_policy(settings.get("retry") or DEFAULT_RETRY),
    )
    program = Program.of(
        cwd=settings.get("cwd"),
        env=settings.get("env"),
        inherit=settings.get("inherit", ()),
        stdin=settings.get("stdin", "none"),
        log_dir=settings.get("log_dir"),
        log_limit=settings.get("log_limit", "10MB"),
        ok_exit_codes=settings.get("ok_exit_codes", (0,)),
        reject_exit_codes=settings.get("reject_exit_codes", ()),
        kill_after=settings.get("kill_after", 2.0),
    )
    return function, options, None if timeout is None else seconds(timeout, "timeout"), program
