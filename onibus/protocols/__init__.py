"""Protocols: bytes from clients become calls of the bus, and its responses become bytes."""
