"""The fleet: the fold of the log into one state, its columns for decisions, and whether a worker has room."""
