"""Registration of the format `onibus`: Spark imports packages of this name automatically."""

from onibus.spark.source import OnibusSource as DefaultSource

__all__ = ["DefaultSource"]
