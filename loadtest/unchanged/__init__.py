"""Show that a refactoring changed nothing: facts of the code, recorded before and compared after.

    python -m loadtest.unchanged record     write the facts of the present code to ``baseline.txt``
    python -m loadtest.unchanged compare    name every fact that differs; the exit status is 1 if one does
    python -m loadtest.unchanged confirm    if all decisions are equal, add the code to ``same.txt``

    cells.py      decisions of the simulator: every policy on five kinds of traffic
    wire.py       bytes of every operation of the shared log, and of a snapshot
    surfaces.py   reference pages, routes, ``cacheway config``, Python calls per request

Published figures carry a fingerprint of the decision code (`loadtest.unchanged.revision`). A refactoring
changes the fingerprint and no decision; ``same.txt`` lists the fingerprints whose decisions are equal, some
of them with one replica only.
"""
