"""Child processes of a worker, for handlers that must be killable: the pool, the protocol, and how children end.

    worker ──socket──▶ child (its own session and process group) ──▶ processes that the handler starts
       └────pipe─────▶ reaper (kills all those groups when the worker dies)

A child never outlives its worker: the reaper sees the end of its pipe and kills every registered group; a thread of the
child sees the end of its socket; and Linux kills the child when its parent dies (``PR_SET_PDEATHSIG``). The reasons are
in docs/adr/0008-supervised-children.md.
"""
