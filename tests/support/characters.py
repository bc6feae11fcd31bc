"""The characters of generated texts."""

from __future__ import annotations

from hypothesis import strategies as st

# What `st.text()` has by default, but without the table of a codec, which every process of a fresh checkout would make
# in seconds.
CHARACTERS = st.characters(exclude_categories=["Cs"])
