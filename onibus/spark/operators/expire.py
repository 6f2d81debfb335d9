"""Expire: which rows have outlived their time to live (B2). No state, and no row leaves the JVM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from onibus.core.errors import InvalidArgument
from onibus.spark.operators.arrivals import (
    WHOLE,
    check_free,
    kind_of,
    millis,
    milliseconds,
    quoted,
)


@dataclass(frozen=True, slots=True)
class Expired:
    """Rows, and those of them whose time is over."""

    #: all rows, with `expires_at` (null for never) and `expired`
    rows: DataFrame

    @property
    def live(self) -> DataFrame:
        return self.rows.where("NOT expired").drop("expired")

    @property
    def expired(self) -> DataFrame:
        return self.rows.where("expired").drop("expired")


def expire(
    rows: DataFrame,
    *,
    as_of: datetime | int | None = None,
    enqueued: str = "enqueued_time",
    time_to_live_ms: str = "time_to_live_ms",
    default_time_to_live_ms: int | None = None,
) -> Expired:
    """Return which rows have expired as of a time, by default the time of the query.

    A row lives as long as it says, or as the default, whichever is shorter, from `enqueued` on.
    """
    check_free(rows.schema, ["expires_at", "expired"])
    kind_of(rows.schema, enqueued, (TimestampType, *WHOLE), "the time to count from")
    if default_time_to_live_ms is not None and default_time_to_live_ms < 1:
        raise InvalidArgument("default_time_to_live_ms must be a whole number above 0")
    lives = sf.lit(default_time_to_live_ms).cast("long")
    if time_to_live_ms in rows.columns:
        kind_of(rows.schema, time_to_live_ms, WHOLE, "the time to live")
        lives = sf.least(sf.col(quoted(time_to_live_ms)).cast("long"), lives)
    elif default_time_to_live_ms is None:
        raise InvalidArgument(
            f"no column {time_to_live_ms!r} and no default_time_to_live_ms: set one"
        )
    expires = millis(rows.schema, enqueued) + lives
    moment = milliseconds(as_of)
    now = sf.unix_millis(sf.current_timestamp()) if moment is None else sf.lit(moment)
    return Expired(
        rows.withColumns(
            {
                "expires_at": sf.timestamp_millis(expires),
                "expired": sf.coalesce(expires <= now, sf.lit(False)),
            }
        )
    )
