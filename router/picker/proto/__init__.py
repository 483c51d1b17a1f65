"""Messages of the proxy: the description, and the code that protoc makes of it."""
