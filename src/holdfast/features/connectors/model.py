"""Settings of connectors, per tenant: allowed hosts, headers, and secrets by name.

Settings contain only the names of secrets: ``{"secret": "RATES_TOKEN"}``. When a job runs, the worker reads the value
from the environment or a secret provider. A value that looks like a secret is refused here and by the database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, TypedDict

from holdfast.engine.declared import Help
from holdfast.engine.hints import check_options
from holdfast.engine.names import check_name
from holdfast.engine.redaction import HIDDEN, Redactor, hide_shapes
from holdfast.engine.units import Duration, Size, in_bytes, seconds
from holdfast.errors import InvalidSetting, Refused

MOST: Final = 200
"""Maximum number of hosts, of headers and of secrets."""
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
    """A tenant's settings for one connector (``http.request``). ``hosts`` are the only allowed hosts, if there are any.
    ``headers`` are sent unless the job sets its own. ``secrets`` are the secrets that jobs may use."""

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
    """An option that is not given keeps its value. ``timeout`` and ``max_bytes`` lower the defaults."""

    hosts: Annotated[
        list[str],
        Help(
            "An allowed host: api.example.com, *.example.com, with :port if needed; repeatable.",
            "HOST",
            option="--host",
            most=MOST,
        ),
    ]
    headers: Annotated[
        dict[str, Any],
        Help(
            'Headers to send with each request: text, or {"secret": NAME} with an optional "prefix".',
            most=MOST,
            cli=False,
        ),
    ]
    secrets: Annotated[
        list[str], Help("Name of a secret that jobs may use; repeatable.", "SECRET", option="--secret", most=MOST)
    ]
    timeout: Annotated[Duration | None, Help("Request timeout: 10s.", clear=True)]
    max_bytes: Annotated[
        Size | None, Help("Maximum response size.", "SIZE", low=1, high=LARGEST, longest=50, clear=True)
    ]
    enabled: Annotated[bool, Help("Enable or disable the connector.", option="--enabled/--disabled")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDraft:
    """Complete, checked settings that are about to be stored."""

    name: str
    enabled: bool = True
    hosts: tuple[str, ...] = ()
    headers: Mapping[str, Any] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    timeout: float | None = None
    max_bytes: int | None = None

    @classmethod
    def of(cls, name: str, current: Connector | None, options: Mapping[str, Any]) -> ConnectorDraft:
        """The current settings with the given options applied."""
        check_options(options, ConnectorOptions.__annotations__)
        old = {} if current is None else {name: getattr(current, name) for name in ConnectorOptions.__annotations__}
        settings = {**old, **options}
        if not isinstance(settings.get("enabled", True), bool):
            raise _invalid("enabled must be true or false")
        timeout, size = settings.get("timeout"), settings.get("max_bytes")
        draft = cls(
            name=check_name(name, "connector"),
            enabled=settings.get("enabled", True),
            hosts=_hosts(settings.get("hosts", ())),
            headers=_headers(settings.get("headers", {})),
            secrets=_secrets(settings.get("secrets", ())),
            timeout=None if timeout is None else _within(seconds(timeout, "timeout"), LONGEST, "timeout", "seconds"),
            max_bytes=None
            if size is None
            else int(_within(in_bytes(size, "max_bytes"), LARGEST, "max_bytes", "bytes")),
        )
        if not draft.hosts and (draft.secrets or any(secret_in(value) for value in draft.headers.values())):
            raise InvalidSetting(
                "secrets are sent only to named hosts",
                code="secrets_need_hosts",
                fix="Name the hosts that may receive the secrets.",
            )
        return draft


def check_secret_name(value: object) -> str:
    if not isinstance(value, str) or not _SECRET.fullmatch(value):
        raise InvalidSetting(
            "a secret's name must consist of capital letters, digits and single underscores, such as RATES_TOKEN",
            code="invalid_secret_name",
        )
    return value


def secret_in(value: object) -> tuple[str, str] | None:
    """The name and the prefix of ``{"secret": "RATES_TOKEN", "prefix": "Bearer "}``; None for plain text."""
    if isinstance(value, str):
        return None
    if not isinstance(value, Mapping) or not {"secret"} <= value.keys() <= {"secret", "prefix"}:
        raise _invalid('the value of a header must be text, or {"secret": NAME} with an optional "prefix"')
    prefix = value.get("prefix", "")
    if not isinstance(prefix, str) or len(prefix) > 20 or not _VALUE.fullmatch(prefix):
        raise _invalid('a prefix must be at most 20 characters of text, such as "Bearer "')
    return check_secret_name(value["secret"]), prefix


def check_headers(headers: object) -> None:
    """Raise if a header of a job is invalid or contains a secret."""
    _headers(headers)


def refuse_secret(header: str, value: str) -> None:
    """Raise if the header's name or the shape of its value suggests that the value is a secret."""
    secret_name = header.lower() != "idempotency-key" and _NAMES.looks_secret(header.replace("-", "_"))
    if secret_name or HIDDEN in hide_shapes(value, HIDDEN):
        raise Refused(
            f"the header {header} would store a secret; store only its name",
            code="secret_in_settings",
            fix='Write {"secret": "NAME"} and set the value in the workers\' environment.',
        )


def _hosts(values: object) -> tuple[str, ...]:
    hosts = tuple(_listed(values, "hosts"))
    for host in hosts:
        port = host.rpartition(":")[2]
        if not _HOST.fullmatch(host) or (port.isdecimal() and "]" not in port and int(port) > 65_535):
            raise _invalid(f"{host[:80]!r} is not a host; use api.example.com or *.example.com, optionally with :8443")
    return hosts


def _headers(values: object) -> dict[str, Any]:
    if not isinstance(values, Mapping) or len(values) > MOST:
        raise _invalid(f"headers must be an object with up to {MOST} names")
    for name, value in values.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise _invalid("the name of a header contains characters that are not allowed")
        if secret_in(value) is None:
            if not _VALUE.fullmatch(value):
                raise _invalid(f"the header {name} contains characters that are not allowed, or is too long")
            refuse_secret(name, value)
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _secrets(values: object) -> tuple[str, ...]:
    return tuple(check_secret_name(value) for value in _listed(values, "secrets"))


def _listed(values: object, what: str) -> list[str]:
    if not isinstance(values, (list, tuple)) or len(values) > MOST or not all(isinstance(text, str) for text in values):
        raise _invalid(f"{what} must be a list of up to {MOST} texts")
    return list(dict.fromkeys(text if what == "secrets" else text.lower() for text in values))


def _within(value: float, limit: float, what: str, unit: str) -> float:
    if not 0 < value <= limit:
        raise _invalid(f"{what} must be more than 0 and at most {limit:,.0f} {unit}")
    return value


def _invalid(message: str) -> InvalidSetting:
    return InvalidSetting(message, code="invalid_connector")
