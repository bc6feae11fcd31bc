"""Dead letters in groups, and operations on many jobs at once."""
