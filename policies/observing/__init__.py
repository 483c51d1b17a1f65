"""Beside decisions: what a second policy would have chosen."""
