"""The shell: sockets, clocks, Redis, logs. It asks `policies`, and does what they say."""
