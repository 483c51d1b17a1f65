"""What to buy: the cheapest fleet that holds a service level on a workload.

    workload ──┬─> bounds: what no fleet can do with less ──┐
               └─> simulations: what a fleet really does  ──┴─> search ──> plan, sensitivity, how sure

Bounds only say where it is useless to look; every fleet that is recommended has been simulated, with the
decisions of the production gateway.
"""
