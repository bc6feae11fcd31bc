"""``holdfast demo``: real worker processes, thousands of jobs, one ``kill -9``, and a summary that was checked.

``kinds`` are the jobs, ``crew`` the processes, ``tail`` what the ledger says meanwhile, ``run`` the story,
``check`` the judge at the end, ``view`` what is seen of it.
"""
