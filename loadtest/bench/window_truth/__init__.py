"""Reuse of prompts by a real engine, beside predictions of it (docs/window-truth.md)."""
