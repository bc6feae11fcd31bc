"""Workers as child processes: ``holdfast worker --processes N`` and ``--reload``.

A supervisor imports none of the program it serves. Each child is spawned, has a lease of its own, and is joined to the
supervisor by one socket (``plan``): orders go down, reports come up, and when the supervisor is gone, however that
came about, the socket closes and the child drains and leaves. ``process`` is a child seen from outside,
``child`` the same from inside.
"""
