"""A fleet in virtual time: production decisions, modelled engines, and the traffic of real traces."""
