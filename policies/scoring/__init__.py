"""One file per placement policy, one registry."""
