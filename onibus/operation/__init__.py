"""Monitoring of a running bus: metrics, health and logs."""
