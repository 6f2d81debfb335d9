"""Requests and results of the native API, as clients and the broker both know them.

These modules import only the light parts of the core. A client therefore needs no store.
"""
