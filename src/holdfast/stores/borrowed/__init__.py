"""Connections that are not ours: the caller's own, with the caller's own transaction open on it.

One module a library says how statements are run there; ``recognise`` finds the right one by the name of the
object's type, so that no library is imported that the program does not have. What is run, and with which
safeguards around it, is each store's own affair (``stores/*/borrowed.py``).
"""
