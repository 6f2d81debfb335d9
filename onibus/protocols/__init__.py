"""Protocols: bytes of clients become calls of the bus, and its answers bytes again."""
