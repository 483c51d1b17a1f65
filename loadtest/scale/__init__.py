"""Gateways beyond one log: a simulation of a sharded prefix tree and of loads told from replica to replica.

Nothing of it is in the gateway: `docs/scale.md` has the design and the figures.
"""
