"""Observation beside decisions: the choices of a second policy."""
