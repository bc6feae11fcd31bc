"""Settings that come from outside the program: the database, the tenant, who we are."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import InvalidSetting

URL_VARIABLE = "HOLDFAST_URL"
TENANT_VARIABLE = "HOLDFAST_TENANT"
LOG_DIR_VARIABLE = "HOLDFAST_LOG_DIR"
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
    """The URL given, else the one of the environment. There is no default: data has one home, and it is named."""
    url = given or environment.get(URL_VARIABLE, "")
    if not url:
        raise InvalidSetting(
            "no database URL given",
            code="missing_url",
            fix=f"Pass a URL such as sqlite:///jobs.db or postgresql://…, or set {URL_VARIABLE}.",
        )
    return url


def service_url(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Where a client finds the service; no default, for the same reason."""
    url = given or environment.get(SERVICE_URL_VARIABLE, "")
    if not url:
        raise InvalidSetting(
            "no service URL given",
            code="missing_url",
            fix=f"Pass a URL such as https://jobs.example.com, or set {SERVICE_URL_VARIABLE}.",
        )
    return url


def service_token(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    return environment.get(SERVICE_TOKEN_VARIABLE, "").strip() if given is None else given


def is_strict(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a worker refuses to start with a role that could do more than run jobs."""
    return environment.get(STRICT_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


def is_disabled(fast_path: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``HOLDFAST_DISABLE`` (``pipeline,task-pool``) switches a fast path off."""
    named = {part.strip().lower() for part in environment.get(DISABLE_VARIABLE, "").split(",")} - {""}
    if unknown := named - set(FAST_PATHS):
        raise InvalidSetting(
            f"{DISABLE_VARIABLE} names {', '.join(sorted(unknown))}, which is not a fast path",
            code="invalid_disable",
            fix=f"Use one or more of {', '.join(FAST_PATHS)}, separated by commas.",
        )
    return fast_path in named


def log_format(environment: Mapping[str, str] = os.environ) -> str:
    """How log lines are written where nothing else is said: ``text`` or ``json``."""
    named = environment.get(LOG_FORMAT_VARIABLE, "").strip().lower() or "text"
    if named not in ("text", "json"):
        raise InvalidSetting(
            f"{LOG_FORMAT_VARIABLE} must be text or json, not {named[:40]!r}", code="unknown_option", fix="Unset it."
        )
    return named


def log_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where command jobs keep their logs, if the environment says so."""
    named = environment.get(LOG_DIR_VARIABLE, "")
    return Path(named) if named else None


def job_log_limit(environment: Mapping[str, str] = os.environ) -> str | None:
    """How much of what each attempt logs with ``ctx.log`` is kept: a size, or 0 for nothing."""
    return environment.get(JOB_LOG_LIMIT_VARIABLE, "").strip() or None


def state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where programs of this user keep what is to last, when nobody has said anything better."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "holdfast" / "commands"
    base = environment.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "state") / "holdfast" / "commands"


def artifact_place(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Where artifacts lie: what the environment names; else beside a database that is a file. A server's workers may be
    anywhere, so there a place must be named."""
    named = environment.get(ARTIFACTS_VARIABLE, "")
    if named:
        return named
    path = url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else ""
    return f"{path}.artifacts" if path and not path.startswith(":memory:") and "?" not in path else None


def key_text(environment: Mapping[str, str] = os.environ) -> str | None:
    return environment.get(KEYS_VARIABLE) or None


def key_values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The keys themselves, for those who must keep them out of what is written down."""
    return [part.partition(":")[2].strip() for part in environment.get(KEYS_VARIABLE, "").split(",")]


def tenant_secret(name: str, tenant: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """A secret that connectors may send, by its name: ``HOLDFAST_SECRET_RATES_TOKEN``, and for another tenant than
    ``default`` ``HOLDFAST_SECRET_acme__RATES_TOKEN``. With a prefix, so that no settings can name what is not meant for
    them; by tenant, so that none can name another's."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else f"_{ord(letter):02X}" for letter in tenant)
    whose = "" if tenant == "default" else f"{plain}__"
    return environment.get(f"{SECRET_PREFIX}{whose}{name}") or None


def egress_networks(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Networks that outgoing HTTP may reach though they are nobody's business otherwise."""
    return tuple(part.strip() for part in environment.get(EGRESS_ALLOW_VARIABLE, "").split(",") if part.strip())


def egress_proxy(environment: Mapping[str, str] = os.environ) -> str | None:
    return environment.get(EGRESS_PROXY_VARIABLE) or None


def operating_user() -> str:
    """Who enqueues, when the program says nothing better (DP-11: never blank)."""
    try:
        return getpass.getuser().strip() or f"uid-{os.getuid()}"
    except (KeyError, OSError, ImportError):  # no such user in this container
        return f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"


def program_name() -> str:
    """Where jobs come from, when the app has no name of its own."""
    return Path(sys.argv[0]).stem.strip() or "python"


def environment(variables: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Every variable and its value, for those who must keep secrets out of what is written down."""
    return list(variables.items())
