"""Decisions: the worker that takes a request, turns, and lessons from answers."""
