"""Prefill in one place and decode in another: which site prefills, and how the links to it are."""
