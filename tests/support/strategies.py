"""Hypothesis strategies."""

from __future__ import annotations

from hypothesis import strategies as st

# The default alphabet of `st.text()`, without the codec table that each process of a fresh checkout would build in
# seconds.
CHARACTERS = st.characters(exclude_categories=["Cs"])
