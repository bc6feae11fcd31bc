"""The public errors, in one place. Their tree is drawn in ``holdfast.domain.errors``."""

from holdfast.domain.errors import (
    Conflict,
    HoldfastError,
    IllegalTransition,
    InvalidArguments,
    InvalidInput,
    InvalidPayload,
    InvalidSetting,
    JobFailed,
    NotFound,
    Refused,
    SchemaMismatch,
    StaleLease,
    StoreError,
    StoreUnavailable,
    WaitTimeout,
)

__all__ = [
    "Conflict",
    "HoldfastError",
    "IllegalTransition",
    "InvalidArguments",
    "InvalidInput",
    "InvalidPayload",
    "InvalidSetting",
    "JobFailed",
    "NotFound",
    "Refused",
    "SchemaMismatch",
    "StaleLease",
    "StoreError",
    "StoreUnavailable",
    "WaitTimeout",
]
