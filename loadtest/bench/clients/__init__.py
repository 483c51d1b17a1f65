"""Load clients of other projects, run through a gateway; their reports beside the gateway's own counts.

`client` is the interface, `field` the list, `comparison` the judgement.
"""
