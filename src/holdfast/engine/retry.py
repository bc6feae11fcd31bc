"""Retry policies: how many attempts a job has, and how long it waits between them; the ``Retry-After`` header.

Invariant: ``least(cap, base * factor ^ greatest(0, retry - 1 - head))`` is the whole rule of a backoff. It is written
once here and once in SQL, and a test compares the two. The bounds below keep the power finite for every retry that the
database allows, so the SQL needs no guard.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from holdfast.engine.hints import check_options
from holdfast.engine.payload import JsonValue
from holdfast.engine.states import State
from holdfast.engine.units import Duration, seconds
from holdfast.errors import HoldfastError, InvalidSetting

MAX_DELAY: Final = 30 * 86_400.0
# 30 days times 1,000 ^ 99 is 2.6e303: no retry up to the hundredth overflows a double.
MAX_FACTOR: Final = 1_000.0
MAX_RETRIES: Final = 100
DEFAULT_MAX_ATTEMPTS: Final = 10


def _number(field: str, value: object, least: float, most: float) -> float:
    # A bool is an int in Python, but never meant as a number of seconds.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most:
        return float(value)
    raise _invalid(f"{field} must be a number from {least:g} to {most:g}")


def whole(field: str, value: object, least: int, most: int, code: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSetting(f"{field} must be a whole number from {least} to {most}", code=code)


def _invalid(why: str, fix: str | None = None) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_backoff", fix=fix)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: ``base``, then ``factor`` times as long each time, up to ``cap``.

    ``head`` is the number of further delays that stay at ``base`` before they grow. With ``jitter`` a delay is drawn
    evenly from zero to the value of the rule, so that jobs that failed together do not return together.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: bool = True
    head: int = 0

    if not TYPE_CHECKING:

        def __new__(cls, *_: object, **given: object) -> Backoff:
            check_options(given, cls.__slots__, "Backoff")
            return object.__new__(cls)

    def __post_init__(self) -> None:
        # Whole numbers become floats, so that equal policies have equal JSON. (``object``, because the class is
        # frozen.)
        object.__setattr__(self, "base", _number("base", self.base, 0.0, MAX_DELAY))
        object.__setattr__(self, "factor", _number("factor", self.factor, 1.0, MAX_FACTOR))
        object.__setattr__(self, "cap", _number("cap", self.cap, 0.0, MAX_DELAY))
        if not isinstance(self.jitter, bool):
            raise _invalid("jitter must be true or false")
        whole("head", self.head, 0, MAX_RETRIES, "invalid_backoff")

    def ceiling(self, retry: int) -> float:
        """The delay before retry number ``retry`` (the first is 1), or with jitter the longest it can be."""
        try:
            return min(self.cap, self.base * self.factor ** max(0, retry - 1 - self.head))
        except OverflowError:
            # Far beyond any retry the database allows. With a base of zero the delay is zero.
            return self.cap if self.base else 0.0

    def delay(self, retry: int, random01: float) -> float:
        """The delay before a retry. ``random01`` is drawn by the caller, evenly from 0 to 1."""
        return random01 * self.ceiling(retry) if self.jitter else self.ceiling(retry)

    def span(self, retries: int) -> float:
        """The longest total time that this number of retries waits, in seconds."""
        return sum(self.ceiling(retry) for retry in range(1, retries + 1))

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "base": self.base,
            "factor": self.factor,
            "cap": self.cap,
            "jitter": self.jitter,
            "head": self.head,
        }

    @classmethod
    def from_json(cls, value: object) -> Backoff:
        """Read the output of ``to_json``, of this release or another.

        Missing fields have their defaults, and unknown ones are ignored: a worker must be able to settle jobs that a
        newer release has enqueued.
        """
        if not isinstance(value, Mapping):
            raise _invalid(f"a backoff is an object, not {type(value).__name__}")
        known: dict[str, Any] = {name: value[name] for name in cls.__slots__ if name in value}
        return cls(**known)


def fixed(seconds: float) -> Backoff:
    """The same delay every time."""
    return Backoff(base=seconds, factor=1.0, cap=seconds, jitter=False)


EXPONENTIAL: Final = Backoff()
"""1, 2, 4, … 256, 300, 300 … seconds, with jitter."""
PATIENT: Final = Backoff(factor=4.0, cap=7_200.0)
"""1, 4, 16, 64, 256, 1,024, 4,096, 7,200, 7,200 … seconds, with jitter: the default of a ``Retry``. Its ten attempts
span up to five and a half hours, so that an outage of a service or a database does not use them up."""
GENTLE: Final = Backoff(cap=60.0, jitter=False, head=1)
"""1, 1, 2, 4, 8, 16, 32, 60, 60 … seconds."""
HOURLY_CAP: Final = Backoff(cap=3_600.0, jitter=False)
"""1, 2, 4, … 2,048, 3,600, 3,600 … seconds."""

PRESETS: Final[Mapping[str, Backoff]] = MappingProxyType(
    {"patient": PATIENT, "exponential": EXPONENTIAL, "gentle": GENTLE, "hourly_cap": HOURLY_CAP}
)


def preset(name: str) -> Backoff:
    try:
        return PRESETS[name]
    except KeyError:
        raise _invalid(f"unknown backoff preset {name!r}", f"Choose from {', '.join(PRESETS)}.") from None


Errors = tuple[type[BaseException], ...]


def _errors(name: str, given: object) -> Errors:
    types = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
    if not all(isinstance(item, type) and issubclass(item, BaseException) for item in types):
        raise _refused(f"{name} must be types of exceptions")
    return tuple(types)


def _refused(why: str, fix: str | None = None) -> InvalidSetting:
    return InvalidSetting(why, code="invalid_retry", fix=fix)


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: how many attempts a job has before it becomes a dead letter, how long it waits between them, and
    how many lost workers it survives.

    ``backoff`` is a ``Backoff`` or the name of a preset. ``retry_on`` and ``give_up_on`` are exception types that
    decide whether another attempt is worth it; they belong to the kind and are not stored with a job. Without
    ``retry_on``, errors that ``is_permanent`` names are not retried. A handler that wants another attempt raises
    ``RetryLater``.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: Backoff = PATIENT
    max_crashes: int = 3
    _: KW_ONLY
    retry_on: Errors = ()
    give_up_on: Errors = ()

    if not TYPE_CHECKING:

        def __new__(cls, *_: object, **given: object) -> Retry:
            check_options(given, cls.__slots__, "Retry")
            return object.__new__(cls)

    if TYPE_CHECKING:  # a preset's name becomes a Backoff, one exception type a tuple

        def __init__(
            self,
            max_attempts: int = DEFAULT_MAX_ATTEMPTS,
            backoff: Backoff | str = PATIENT,
            max_crashes: int = 3,
            *,
            retry_on: Errors | type[BaseException] = (),
            give_up_on: Errors | type[BaseException] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        # ``object``, because the class is frozen.
        object.__setattr__(self, "backoff", as_backoff(self.backoff))
        whole("max_attempts", self.max_attempts, 1, MAX_RETRIES + 1, "invalid_retry")
        whole("max_crashes", self.max_crashes, 0, MAX_RETRIES, "invalid_retry")
        object.__setattr__(self, "retry_on", _errors("retry_on", self.retry_on))
        object.__setattr__(self, "give_up_on", _errors("give_up_on", self.give_up_on))

    @property
    def span(self) -> float:
        """The longest time, in seconds, between the first failure and the last attempt. With jitter the average is half
        of it."""
        return self.backoff.span(self.max_attempts - 1)

    def is_final(self, error: BaseException) -> bool:
        """Whether another attempt after this error is not worth it."""
        if isinstance(error, self.give_up_on):
            return True
        return not isinstance(error, self.retry_on) if self.retry_on else is_permanent(error)


PERMANENT: Final = (NameError, NotImplementedError, ModuleNotFoundError, SyntaxError)
"""Errors of the program, whatever the data: the next attempt runs the same code."""
PERMANENT_CODES: Final = frozenset({"invalid_arguments", "not_callable"})


def is_permanent(error: BaseException) -> bool:
    """Whether an error is one of the program, so that another attempt fails in the same way.

    A ``TypeError`` is one if it comes from the call of the handler or of a step: the arguments do not fit, and no line
    of the function has run. Raised in its body, it may depend on data that changes, as an ``AttributeError`` may; one
    that a child process raises while it imports the handler does not.
    """
    if isinstance(error, HoldfastError):
        cause = error.__cause__
        missing = cause is None or isinstance(cause, (AttributeError, ImportError, *PERMANENT))
        return error.code in PERMANENT_CODES or (error.code == "import_failed" and missing)
    if isinstance(error, TypeError):
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        return last is not None and str(last.tb_frame.f_globals.get("__name__")).startswith("holdfast.")
    return isinstance(error, PERMANENT)


def as_backoff(value: object) -> Backoff:
    """A ``Backoff``, or the preset of that name; ``InvalidSetting`` for anything else."""
    if isinstance(value, str):
        return preset(value)
    if not isinstance(value, Backoff):
        raise _refused(
            f"backoff must be a Backoff or the name of a preset, not {type(value).__name__}",
            f"For seconds use Backoff(base=5). Presets: {', '.join(PRESETS)}.",
        )
    return value


AT_MOST_ONCE: Final = Retry(max_attempts=1, max_crashes=0)
"""The job starts once: it is not repeated after a failure, nor after the loss of its worker."""


def attempt_limit(max_attempts: object) -> int | None:
    """A number of attempts, checked; None stays None."""
    if max_attempts is None:
        return None
    whole("max_attempts", max_attempts, 1, MAX_RETRIES + 1, "invalid_retry")
    return int(max_attempts)  # type: ignore[call-overload, no-any-return]


def as_policy(value: object) -> Retry:
    """The retry policy of a kind, or ``InvalidSetting``. The name of a preset is the default policy with that
    backoff."""
    if isinstance(value, str):
        return Retry(backoff=preset(value))
    if not isinstance(value, Retry):
        raise _refused(
            f"retry must be a Retry or the name of a preset, not {type(value).__name__}",
            "For 3 attempts use Retry(max_attempts=3), for no retry Retry(max_attempts=1). "
            f"Presets: {', '.join(PRESETS)}.",
        )
    return value


def as_stored_policy(value: object) -> Retry:
    """The retry policy of one job: without exception types, which cannot be stored for the program that runs the
    job."""
    policy = as_policy(value)
    if policy.retry_on or policy.give_up_on:
        raise _refused(
            "retry_on and give_up_on belong to a kind, not to one job: they are not stored",
            "Give them to @app.job(retry=…).",
        )
    return policy


def can_retry(state: str, attempts: int, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> bool:
    """Whether attempts are left for a job in this state: none for a job that succeeded or is running. Pure: it only
    counts, and the database decides whether a transition is legal.

    ``can_retry(job.state, job.retries, job.max_attempts)``
    """
    return state not in (State.SUCCEEDED, State.IN_PROGRESS) and attempts < max_attempts


# The header ``Retry-After`` (RFC 9110, section 10.2.3) is a number of seconds or a date. It comes from outside, so it
# may contain anything: a malformed value counts as none, a delay over the limit is cut, and a date in the past means
# now.

LONGEST_VALUE: Final = 100
_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")  # the RFC allows whole numbers only; some services send fractions
_NOT_A_DATE = (ValueError, TypeError, OverflowError, IndexError)


def retry_after_delay(value: object, now: datetime, longest: float) -> float | None:
    """The delay of a ``Retry-After`` header in seconds, from 0 to ``longest``; None for a malformed one."""
    text = _text(value)
    if text is None:
        return None
    if _SECONDS.fullmatch(text):
        return min(float(text), longest)
    moment = http_date(text)
    if moment is None:
        return None
    return min(max(0.0, (moment - now).total_seconds()), longest)


def http_date(value: object) -> datetime | None:
    """A date in one of the three formats of HTTP; None for anything else."""
    text = _text(value)
    if text is None:
        return None
    try:
        date = parsedate_to_datetime(text)
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    except _NOT_A_DATE:
        return None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if 0 <= value < 10**50 else None
    if not isinstance(value, str) or not value.isascii() or len(value) > LONGEST_VALUE:
        return None
    return value.strip()


def retry_after(
    value: object, *, default: Duration | None = None, longest: Duration = "1d", date: object = None
) -> float | None:
    """The delay of a ``Retry-After`` header in seconds: ``RetryLater(retry_after(headers.get("Retry-After")))``.

    The header is a number of seconds or an HTTP date. The delay is never longer than ``longest``. For a missing or
    malformed header it is ``default``, or else None, which leaves the delay to the job's backoff. With ``date``, the
    ``Date`` header of the response, a date is compared with the clock of the service and not of this machine.
    """
    limit = seconds(longest, "duration")
    delay = retry_after_delay(value, http_date(date) or datetime.now(UTC), limit)
    if delay is not None or default is None:
        return delay
    return seconds(default, "duration")
