"""Queries that a lake ships with: SQL files next to its tables.

    <lake>/<entity>/queries/state.sql          each message with its state and its dead-lettering
    <lake>/<entity>/queries/dead_lettered.sql  messages in the dead-letter queue, with their reasons

They read the tables `messages` and `outcomes`, under these names, and copy nothing. The SQL is such
that DuckDB, Spark and Polars take it. The messages of a subscription are those of its topic.
"""

from __future__ import annotations

from onibus.spark.lake_files import LakeFiles

FOLDER = "queries"

_STATE = """\
-- {about}
-- Tables: messages{whose}, outcomes.
WITH ended AS (
    SELECT sequence_number, outcome, time
    FROM outcomes WHERE outcome <> 'dead-lettered'
), dead AS (
    SELECT sequence_number, outcome, time, reason, description
    FROM outcomes WHERE outcome = 'dead-lettered'
)
SELECT
    messages.*,
    COALESCE(ended.outcome, dead.outcome, 'present') AS state,
    COALESCE(ended.time, dead.time) AS state_time,
    dead.time AS dead_lettered_time,
    dead.reason AS dead_letter_reason,
    dead.description AS dead_letter_description
FROM messages
LEFT JOIN dead ON messages.sequence_number = dead.sequence_number
LEFT JOIN ended ON messages.sequence_number = ended.sequence_number
{where}"""
_ABOUT_STATE = (
    "Each message with its state: its outcome, or dead-lettered, or present in the broker when the "
    "lake was captured."
)
_ABOUT_DEAD = "The messages in the dead-letter queue, with their reasons."
_IN_DEAD_LETTERS = "WHERE dead.outcome IS NOT NULL AND ended.outcome IS NULL\n"
#: Rules decide which messages of its topic a subscription gets: only an outcome tells.
_OF_SUBSCRIPTION = "WHERE dead.outcome IS NOT NULL OR ended.outcome IS NOT NULL\n"


def queries_of(entity: str) -> dict[str, str]:
    """Return the queries of an entity by their names."""
    topic, mark, _ = entity.lower().partition("/subscriptions/")
    whose = f" (of the topic {topic})" if mark else ""
    state = _OF_SUBSCRIPTION if mark else ""
    return {
        "state": _STATE.format(about=_ABOUT_STATE, whose=whose, where=state),
        "dead_lettered": _STATE.format(about=_ABOUT_DEAD, whose=whose, where=_IN_DEAD_LETTERS),
    }


def put_queries(store: LakeFiles, entity: str) -> None:
    """Write the queries of an entity, where they are missing or of another version."""
    for name, text in queries_of(entity).items():
        path = f"{FOLDER}/{name}.sql"
        if store.read(path) != text.encode():
            store.put(path, text.encode(), "new")
