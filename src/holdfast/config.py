"""Settings that come from outside the program: environment variables, the operating system's user, the program's name.

Each function reads its variable when it is called, so tests and programs may change the environment before that.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import InvalidSetting

URL_VARIABLE = "HOLDFAST_URL"
READ_URL_VARIABLE = "HOLDFAST_READ_URL"
TENANT_VARIABLE = "HOLDFAST_TENANT"
LOG_DIR_VARIABLE = "HOLDFAST_LOG_DIR"
VERSION_VARIABLE = "HOLDFAST_APP_VERSION"
STRICT_VARIABLE = "HOLDFAST_STRICT"
ARTIFACTS_VARIABLE = "HOLDFAST_ARTIFACTS"
KEYS_VARIABLE = "HOLDFAST_KEYS"
LOG_FORMAT_VARIABLE = "HOLDFAST_LOG_FORMAT"
SECRET_PREFIX = "HOLDFAST_SECRET_"
EGRESS_ALLOW_VARIABLE = "HOLDFAST_EGRESS_ALLOW"
EGRESS_PROXY_VARIABLE = "HOLDFAST_EGRESS_PROXY"
SERVICE_URL_VARIABLE = "HOLDFAST_API_URL"
SERVICE_TOKEN_VARIABLE = "HOLDFAST_API_TOKEN"
DISABLE_VARIABLE = "HOLDFAST_DISABLE"
METRICS_PORT_VARIABLE = "HOLDFAST_METRICS_PORT"
JOB_LOG_LIMIT_VARIABLE = "HOLDFAST_JOB_LOG_LIMIT"

FAST_PATHS = ("pipeline", "task-pool")
"""Fast paths that depend on more of CPython or psycopg than their documentation promises. Each can be switched off."""


def database_url(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL that was passed, or ``HOLDFAST_URL``. There is no default: a program must not create a database by
    accident. Raises ``InvalidSetting``."""
    url = given or environment.get(URL_VARIABLE, "")
    if not url:
        raise InvalidSetting(
            "no database URL given",
            code="missing_url",
            fix=f"Pass a URL such as sqlite:///jobs.db or postgresql://…, or set {URL_VARIABLE}.",
        )
    return url


def read_url(environment: Mapping[str, str] = os.environ) -> str:
    """Return ``HOLDFAST_READ_URL``, or nothing."""
    return environment.get(READ_URL_VARIABLE, "").strip()


def service_url(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the HTTP service: the argument, or ``HOLDFAST_API_URL``. Raises ``InvalidSetting``."""
    url = given or environment.get(SERVICE_URL_VARIABLE, "")
    if not url:
        raise InvalidSetting(
            "no service URL given",
            code="missing_url",
            fix=f"Pass a URL such as https://jobs.example.com, or set {SERVICE_URL_VARIABLE}.",
        )
    return url


def service_token(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the API token: the argument, or ``HOLDFAST_API_TOKEN``."""
    return environment.get(SERVICE_TOKEN_VARIABLE, "").strip() if given is None else given


def application_version(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the version of the application, if ``HOLDFAST_APP_VERSION`` is set."""
    return environment.get(VERSION_VARIABLE, "").strip() or None


def is_strict(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether workers refuse to start with a database role that has more rights than running jobs needs."""
    return environment.get(STRICT_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


def is_disabled(fast_path: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``HOLDFAST_DISABLE`` (``pipeline,task-pool``) switches a fast path off."""
    disabled = {part.strip().lower() for part in environment.get(DISABLE_VARIABLE, "").split(",")} - {""}
    if unknown := disabled - set(FAST_PATHS):
        raise InvalidSetting(
            f"{DISABLE_VARIABLE} names {', '.join(sorted(unknown))}, which is not a fast path",
            code="invalid_disable",
            fix=f"Use one or more of {', '.join(FAST_PATHS)}, separated by commas.",
        )
    return fast_path in disabled


def log_format(environment: Mapping[str, str] = os.environ) -> str:
    """Return the default format of log lines, ``text`` or ``json``."""
    value = environment.get(LOG_FORMAT_VARIABLE, "").strip().lower() or "text"
    if value not in ("text", "json"):
        raise InvalidSetting(
            f"{LOG_FORMAT_VARIABLE} must be text or json, not {value[:40]!r}", code="unknown_option", fix="Unset it."
        )
    return value


def log_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder for the output of command jobs, if ``HOLDFAST_LOG_DIR`` is set."""
    folder = environment.get(LOG_DIR_VARIABLE, "")
    return Path(folder) if folder else None


def job_log_limit(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return how much of each attempt's log is stored: a size such as ``1MB``, or ``0`` for none; None if unset."""
    return environment.get(JOB_LOG_LIMIT_VARIABLE, "").strip() or None


def state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the default folder for the output of command jobs: in the user's state directory."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "holdfast" / "commands"
    base = environment.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "state") / "holdfast" / "commands"


def artifact_location(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the location of the artifact store: ``HOLDFAST_ARTIFACTS``, or a folder beside a SQLite file.

    None for a PostgreSQL database without the variable: its workers may run on several hosts, which share no folder.
    """
    location = environment.get(ARTIFACTS_VARIABLE, "")
    if location:
        return location
    path = url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else ""
    return f"{path}.artifacts" if path and not path.startswith(":memory:") and "?" not in path else None


def key_text(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the encryption keys as written in ``HOLDFAST_KEYS`` (``name:key,name:key``)."""
    return environment.get(KEYS_VARIABLE) or None


def key_values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the encryption keys without their names, for redaction."""
    return [part.partition(":")[2].strip() for part in environment.get(KEYS_VARIABLE, "").split(",")]


def tenant_secret(name: str, tenant: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the secret that connectors and webhooks refer to by ``name``.

    The variable of ``RATES_TOKEN`` is ``HOLDFAST_SECRET_RATES_TOKEN``, and for a tenant other than ``default``
    ``HOLDFAST_SECRET_acme__RATES_TOKEN``. The prefix keeps connector settings from reading other variables; the tenant
    keeps them from reading another tenant's secrets.
    """
    escaped = "".join(letter if letter.isascii() and letter.isalnum() else f"_{ord(letter):02X}" for letter in tenant)
    owner = "" if tenant == "default" else f"{escaped}__"
    return environment.get(f"{SECRET_PREFIX}{owner}{name}") or None


def egress_networks(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the networks that outgoing HTTP may reach besides public addresses."""
    return tuple(part.strip() for part in environment.get(EGRESS_ALLOW_VARIABLE, "").split(",") if part.strip())


def egress_proxy(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the proxy for outgoing HTTP, if one is set."""
    return environment.get(EGRESS_PROXY_VARIABLE) or None


def operating_user() -> str:
    """Return the default for ``enqueued_by``: the name of the operating system's user. It is never blank."""
    try:
        return getpass.getuser().strip() or f"uid-{os.getuid()}"
    except (KeyError, OSError, ImportError):  # the container has no entry for this user
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"


def program_name() -> str:
    """Return the default name of an app: the name of the program."""
    return Path(sys.argv[0]).stem.strip() or "python"


def environment(variables: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Return all environment variables, for the redaction of secrets."""
    return list(variables.items())
