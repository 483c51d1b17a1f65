"""Beside decisions: what a second policy would have chosen, and which prompt starts save prefill."""
