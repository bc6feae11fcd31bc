"""Settings of connectors, per tenant (JF-11): whom they may reach, with what headers, and which secrets by name. Pure.

A secret is never here, only its name: what is stored says ``{"secret": "RATES_TOKEN"}``, and a worker asks the
environment or a secret provider when a job runs. What looks like a secret itself is refused, here and by the database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypedDict

from holdfast.engine.names import check_name, check_options
from holdfast.engine.redaction import HIDDEN, Redactor, hide_shapes
from holdfast.engine.units import Duration, Size, in_bytes, seconds
from holdfast.errors import InvalidSetting, Refused

MOST: Final = 200
"""So many hosts, headers and secrets at most."""
LONGEST: Final = 600.0
LARGEST: Final = 256 * 1024 * 1024
_HOST: Final = re.compile(
    r"(?=.{1,260}\Z)(?:(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]{0,250}[a-z0-9_])?|\[[0-9a-f:.]{2,45}\])(?::[1-9][0-9]{0,4})?"
)
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,2000}")
_SECRET: Final = re.compile(r"(?!.*__)[A-Z][A-Z0-9_]{0,99}")
_NAMES: Final = Redactor(("key", "auth"))


@dataclass(frozen=True, slots=True)
class Connector:
    """What a tenant has set for one connector (``http.request``): hosts, if any, are the only ones; headers are sent
    unless the job has its own; secrets are those that jobs may name."""

    tenant: str
    name: str
    enabled: bool
    hosts: tuple[str, ...]
    headers: dict[str, Any]
    secrets: tuple[str, ...]
    timeout: float | None
    max_bytes: int | None
    set_by: str
    created_at: datetime
    updated_at: datetime


class ConnectorOptions(TypedDict, total=False):
    """``hosts``: names, ``*.example.com``, perhaps with a port. ``headers``: text, or ``{"secret": NAME}`` and perhaps
    a ``prefix``. ``secrets``: names. ``timeout`` and ``max_bytes`` make the usual ones smaller."""

    hosts: list[str]
    headers: dict[str, Any]
    secrets: list[str]
    timeout: Duration | None
    max_bytes: Size | None
    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDraft:
    """What is to be set, checked."""

    name: str
    enabled: bool = True
    hosts: tuple[str, ...] = ()
    headers: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    timeout: float | None = None
    max_bytes: int | None = None

    @classmethod
    def of(cls, name: str, was: Connector | None, given: Mapping[str, Any]) -> ConnectorDraft:
        """What was given, and of the rest what was there."""
        check_options(given, ConnectorOptions.__annotations__)
        old = {} if was is None else {each: getattr(was, each) for each in ConnectorOptions.__annotations__}
        said = {**old, **given}
        if not isinstance(said.get("enabled", True), bool):
            raise _invalid("enabled is true or false")
        timeout, size = said.get("timeout"), said.get("max_bytes")
        made = cls(
            name=check_name(name, "connector"),
            enabled=said.get("enabled", True),
            hosts=_hosts(said.get("hosts", ())),
            headers=_headers(said.get("headers", {})),
            secrets=_secrets(said.get("secrets", ())),
            timeout=None if timeout is None else _within(seconds(timeout, "timeout"), LONGEST, "timeout", "seconds"),
            max_bytes=None
            if size is None
            else int(_within(in_bytes(size, "max_bytes"), LARGEST, "max_bytes", "bytes")),
        )
        if not made.hosts and (made.secrets or any(secret_in(value) for value in made.headers.values())):
            raise InvalidSetting(
                "secrets are sent only to named hosts",
                code="secrets_need_hosts",
                fix="Name the hosts that may receive the secrets.",
            )
        return made


def check_secret_name(value: object) -> str:
    if not isinstance(value, str) or not _SECRET.fullmatch(value):
        raise InvalidSetting(
            "a secret's name must consist of capital letters, digits and single underscores, such as RATES_TOKEN",
            code="invalid_secret_name",
        )
    return value


def secret_in(value: object) -> tuple[str, str] | None:
    """The name and the prefix of ``{"secret": "RATES_TOKEN", "prefix": "Bearer "}``; None for what is plain text."""
    if isinstance(value, str):
        return None
    if not isinstance(value, Mapping) or not {"secret"} <= value.keys() <= {"secret", "prefix"}:
        raise _invalid('the value of a header is text, or {"secret": NAME} and perhaps a "prefix"')
    prefix = value.get("prefix", "")
    if not isinstance(prefix, str) or len(prefix) > 20 or not _VALUE.fullmatch(prefix):
        raise _invalid('a prefix is short, such as "Bearer "')
    return check_secret_name(value["secret"]), prefix


def check_headers(headers: object) -> None:
    """Raise if a header of a job is none, or has a secret in it."""
    _headers(headers)


def refuse_secret(header: str, value: str) -> None:
    """Raise if the value of a header seems to be a secret itself: by the header's name, or by its own shape."""
    telling = header.lower() != "idempotency-key" and _NAMES.looks_secret(header.replace("-", "_"))
    if telling or HIDDEN in hide_shapes(value, HIDDEN):
        raise Refused(
            f"the header {header} would store a secret; store only its name",
            code="secret_in_settings",
            fix='Write {"secret": "NAME"} and set the value in the workers\' environment.',
        )


def _hosts(values: object) -> tuple[str, ...]:
    made = tuple(_listed(values, "hosts"))
    for host in made:
        port = host.rpartition(":")[2]
        if not _HOST.fullmatch(host) or (port.isdecimal() and "]" not in port and int(port) > 65_535):
            raise _invalid(f"{host[:80]!r} is no host: api.example.com, *.example.com, perhaps with :8443")
    return made


def _headers(values: object) -> dict[str, Any]:
    if not isinstance(values, Mapping) or len(values) > MOST:
        raise _invalid(f"headers are up to {MOST} names with values")
    for name, value in values.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise _invalid("the name of a header has characters that none may have")
        if secret_in(value) is None:
            if not _VALUE.fullmatch(value):
                raise _invalid(f"the header {name} has characters that none may have, or too many")
            refuse_secret(name, value)
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _secrets(values: object) -> tuple[str, ...]:
    return tuple(check_secret_name(value) for value in _listed(values, "secrets"))


def _listed(values: object, what: str) -> list[str]:
    if not isinstance(values, (list, tuple)) or len(values) > MOST or not all(isinstance(each, str) for each in values):
        raise _invalid(f"{what} are a list of up to {MOST} texts")
    return list(dict.fromkeys(each if what == "secrets" else each.lower() for each in values))


def _within(value: float, most: float, what: str, unit: str) -> float:
    if not 0 < value <= most:
        raise _invalid(f"{what} is more than 0 and at most {most:,.0f} {unit}")
    return value


def _invalid(why: str) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_connector")
