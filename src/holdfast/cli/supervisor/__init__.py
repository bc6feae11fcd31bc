"""Workers as child processes: ``holdfast worker --processes N`` and ``--reload``.

The supervisor does not import the program that it serves. It spawns each child, which has its own lease, and is
connected to it by a socket: orders go to the child, reports to the supervisor. If the supervisor ends for any reason,
the socket closes, and the child drains and exits. ``process`` is a child as the supervisor sees it; ``worker_process``
is the program of the child.
"""
