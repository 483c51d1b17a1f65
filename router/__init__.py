"""The shell: sockets, clocks, Redis, logs. It asks `policies` for decisions and carries them out."""
