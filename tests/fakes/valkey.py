"""Valkey servers that fail on purpose, for tests (`loadtest.chaos.valkey`)."""

from loadtest.chaos import ClusterGroup, SentinelGroup, ValkeyServer

__all__ = ["ClusterGroup", "SentinelGroup", "ValkeyServer"]
