"""Prefill in one place and decode in another: the site of a prefill, and the state of links."""
