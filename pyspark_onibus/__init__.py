"""Registers the format `onibus` with Spark, which looks for packages of this name by itself."""

from onibus.spark.source import OnibusSource as DefaultSource

__all__ = ["DefaultSource"]
