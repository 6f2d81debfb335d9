"""Requests and results of the native API, shared by clients and the broker.

These modules import only the light parts of the core. A client therefore needs no store.
"""
