"""Calls of a Bus, group by group; `bus.py` combines them."""
