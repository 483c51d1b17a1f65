"""Random and grammar-based attacks on real gateways, and the rules that must hold under them.

    seed ──> cases.py ──> a case: bytes to a replica, a worker's answers, log entries, pods, orders
               ^            │
       heads, bodies,       v
       answers, entries,  player.py ──> two replicas (`watched.py`), Valkey, engines, an API server
       pods, orders         │
                            v
                          campaign.py: rounds of cases beside a bystander ──> judge.py ──> findings

``python -m loadtest.fuzz`` runs it. A case is a function of the seed and its number alone. ``python -m
loadtest.fuzz.mutants`` takes mends out and expects findings.
"""
