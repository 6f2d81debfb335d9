"""The last outcome of each message, as a table that AutoCDC keeps (SCD type 1).

Outcomes are a change feed: a message is dead-lettered, and later completed. AutoCDC merges each
change into the table, so the catalog's tables must support MERGE, as those of Delta and Iceberg do.
"""

from pyspark import pipelines as dp

dp.create_streaming_table("last_outcomes", comment="The last outcome of each message")
dp.create_auto_cdc_flow(
    target="last_outcomes",
    source="outcomes",
    keys=["partition", "sequence_number"],
    sequence_by="number",
    except_column_list=["number"],
    stored_as_scd_type=1,
)
