"""The fleet in virtual time: production decisions on modelled engines, thousands of requests in seconds.

    Workload --arrivals--> Simulation --round robin--> Replica --place (policies)--> Fleet
                               ^                          |  operations               | modelled engines
                               |                          +--- delayed log ---> other replicas
                               +----- first token, end, usage -----------------------+

Decisions are made by production code: `policies`, `radix`, and the gateway's `Decider`, `Feedback` and
`LogClock`. Modelled are engines with their KV caches (`loadtest.engine`), links, arrivals, and the delay of
the log. The same workload, configuration and seed give the same choices, in the same order, everywhere.
"""
