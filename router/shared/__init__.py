"""The shared log, snapshots and heartbeats on Redis."""
