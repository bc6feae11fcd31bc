"""Moves: a whole database goes to another store or server while programs use it (docs/adr/0053)."""
