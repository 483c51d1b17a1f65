"""The fleet in virtual time: production decisions on modelled engines, thousands of requests in seconds.

    Workload --arrivals--> Simulation --round robin--> Replica --place (policies)--> Fleet
                               ^                          |  operations               | modelled engines
                               |                          +--- delayed log ---> other replicas
                               +----- first token, end, usage -----------------------+

What decides is what runs in production: `policies`, `radix`, and the gateway's `Decider`, `Feedback` and
`LogClock`. What is modelled is everything a decision meets: engines with their KV caches (`loadtest.engine`),
links, arrivals, and the delay with which replicas hear of each other. One run is one process and one core:
the same workload, configuration and seed give the same choices, in the same order, everywhere.
"""
