"""Which artifact store a text names: a directory, or a bucket of anything that speaks S3."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.artifacts.base import Artifacts, ArtifactStore
from holdfast.artifacts.directory import Directory
from holdfast.artifacts.s3 import Bucket
from holdfast.engine.redaction import shown_url
from holdfast.errors import InvalidSetting


def open_artifacts(named: str | os.PathLike[str] | ArtifactStore | None) -> Artifacts | None:
    """``/var/lib/jobs``, ``file:///var/lib/jobs``, ``s3://bucket/prefix?region=…``, or a store of your own."""
    if named is None or named == "":
        return None
    if isinstance(named, os.PathLike):
        return Artifacts(Directory(Path(named)))
    if not isinstance(named, str):
        return Artifacts(named)
    if named.startswith("s3://"):
        return Artifacts(Bucket.of(named, os.environ))
    if named.startswith("file://"):
        return Artifacts(Directory(named.removeprefix("file://")))
    if "://" in named:
        raise InvalidSetting(
            f"{shown_url(named)} names no artifact store",
            code="invalid_artifacts",
            fix="Use a directory, or s3://bucket/prefix?region=…",
        )
    return Artifacts(Directory(named))
