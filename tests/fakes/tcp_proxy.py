"""A network that fails on purpose, for tests (`loadtest.chaos.tcp_proxy`)."""

from loadtest.chaos import TcpProxy

__all__ = ["TcpProxy"]
