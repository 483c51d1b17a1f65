"""Benchmarks: each prints figures with the command that made them."""
