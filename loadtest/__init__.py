"""Load, replay and emulation: everything that drives the gateway or stands in for an engine."""
