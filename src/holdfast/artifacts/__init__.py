"""The artifact store: where bytes go that are too large for the database, by reference (DP-21)."""

from holdfast.artifacts.base import Artifacts, ArtifactStore, Reference
from holdfast.artifacts.open import open_artifacts

__all__ = ["ArtifactStore", "Artifacts", "Reference", "open_artifacts"]
