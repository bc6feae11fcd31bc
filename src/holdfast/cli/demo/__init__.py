"""``holdfast demo``: real worker processes, thousands of jobs, one ``kill -9``, and a check of the result.

``workers`` has the jobs and the processes, ``command`` the sequence of events, ``view`` the display, and ``check`` the
verification at the end.
"""
