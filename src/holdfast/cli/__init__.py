"""The command line: data on stdout, messages on stderr, ``--json`` everywhere, exit codes that mean something.

Nothing below imports this package, and only its modules import Typer and rich (the extra ``cli``).
"""
