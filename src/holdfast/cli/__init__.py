"""The command line. Data goes to stdout and messages to stderr; every command has ``--json`` and stable exit codes.

Only this package and the ``commands`` modules of features import Typer and rich (the extra ``cli``).
"""
