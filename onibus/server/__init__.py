"""The server: a bus with its listeners, configured, started and stopped."""
