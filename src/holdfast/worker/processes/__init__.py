"""Child processes of a worker, which can be killed for real: a pool of them, how one is spoken to, how it dies.

    worker ──socket──▶ child (its own session and process group) ──▶ whatever the handler starts
       └────pipe─────▶ keeper (kills all those groups when the worker is gone)

A child never outlives its worker: the keeper sees the end of its pipe and kills every group it was told of;
the child itself sees the end of its socket, in a thread; and Linux kills it by itself (``PR_SET_PDEATHSIG``).
The reasons are in docs/adr/0010-supervised-children.md.
"""
