"""Calls of the HTTP API, group by group; `routes.py` combines them."""
