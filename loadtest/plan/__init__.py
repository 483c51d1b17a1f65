"""The cheapest fleet that holds a service level on a workload.

    workload ──┬─> bounds: what no fleet can do with less ──┐
               └─> simulations: what a fleet really does  ──┴─> search ──> plan, sensitivity, how sure

Bounds only exclude fleets; every recommended fleet has been simulated, with the gateway's own decisions.
"""
