"""Kinds of jobs whose work is done by something else than a Python function: so far, a program."""
