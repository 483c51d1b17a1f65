"""What to do: pure decisions over frozen views, and the fold that makes the fleet's state."""
