"""Metric families with their labels; `docs/metrics.md` lists them.

The aggregate page drops the labels in `objects`; most values are then added up.
"""

from __future__ import annotations

from onibus.core.lifecycle import DEAD, Input, State
from onibus.operation.exposition import COUNTER, GAUGE, HISTOGRAM, Labels, Metric

_ENTITY = ("entity",)
_PARTITION = ("entity", "partition")
_READER = ("entity", "reader")

#: Names of states, and the states they cover. Messages in none of them are active.
STATES: dict[str, tuple[State, ...]] = {
    "locked": (State.LOCKED, State.DEFERRED_LOCKED),
    "delayed": (State.DELAYED,),
    "deferred": (State.DEFERRED,),
    "scheduled": (State.SCHEDULED,),
    "deadletter": tuple(DEAD),
}


def _gauge(name: str, text: str, *objects: str, labels: Labels = ()) -> Metric:
    return Metric(name=name, kind=GAUGE, help=text, labels=labels, objects=objects)


def _oldest(name: str, text: str, *objects: str) -> Metric:
    return Metric(name=name, kind=GAUGE, help=text, objects=objects, fold=max)


def _counter(name: str, text: str, *objects: str, labels: Labels = ()) -> Metric:
    return Metric(name=name, kind=COUNTER, help=text, labels=labels, objects=objects)


def _seconds(name: str, text: str, *objects: str, labels: Labels = ()) -> Metric:
    return Metric(name=name, kind=HISTOGRAM, help=text, labels=labels, objects=objects)


MESSAGES = _gauge("onibus_queue_messages", "Messages by state.", *_PARTITION, labels=("state",))
OLDEST = _oldest(
    "onibus_oldest_message_age_seconds",
    "Age of the oldest message that waits for a receiver; on the aggregate page, of all entities.",
    *_PARTITION,
)
SIZE = _gauge("onibus_size_bytes", "Size of stored messages.", *_PARTITION)
IDS = _gauge("onibus_dedup_ids", "Ids recorded for duplicate detection.", *_PARTITION)
IDS_BYTES = _gauge("onibus_dedup_bytes", "Memory used by recorded ids.", *_PARTITION)
SESSIONS = _gauge("onibus_sessions_active", "Locked sessions.", *_PARTITION)
NOISY = _gauge(
    "onibus_noisy_groups", "Groups whose messages are delivered after those of others.", *_PARTITION
)
OFFLINE = _gauge("onibus_offline_partitions", "Offline partitions.", *_ENTITY)
WAITING = _gauge("onibus_waiting_receivers", "Receive requests waiting for a message.", *_ENTITY)
LAG = _gauge(
    "onibus_reader_lag_messages",
    "Log rows that a named reader has not read.",
    *_READER,
    "partition",
)
CLAIMS = _gauge("onibus_claims", "Open claims.", *_READER)
CLAIMED = _gauge("onibus_claimed_messages", "Messages in open claims.", *_READER)
OLDEST_CLAIM = _oldest("onibus_oldest_claim_age_seconds", "Age of the oldest open claim.", *_READER)
ENTITIES = _gauge("onibus_entities", "Queues, topics and subscriptions.", labels=("kind",))

ACCEPTED = _counter(
    "onibus_messages_accepted_total",
    "Messages stored by sends, without dropped duplicates.",
    *_ENTITY,
)
DUPLICATES = _counter("onibus_duplicates_dropped_total", "Duplicates dropped.", *_ENTITY)
DELIVERED = _counter(
    "onibus_messages_delivered_total", "Deliveries, including redeliveries.", *_ENTITY
)
DEAD_LETTERED = _counter(
    "onibus_deadlettered_total",
    "Messages dead-lettered; reason 'application' if a client set the reason.",
    *_ENTITY,
    labels=("reason",),
)
FAILOVERS = _counter(
    "onibus_partition_failover_total",
    "Sends rerouted past an unavailable or full partition.",
    *_ENTITY,
)
#: Counters of settled and moved messages, with the inputs that each adds up.
CHANGES: dict[Metric, tuple[Input, ...]] = {
    _counter("onibus_completed_total", "Messages completed, or received and deleted.", *_ENTITY): (
        Input.COMPLETE,
        Input.TAKE,
    ),
    _counter(
        "onibus_abandoned_total",
        "Messages abandoned, or whose lock expired.",
        *_ENTITY,
    ): (Input.ABANDON, Input.DELAY),
    _counter("onibus_deferred_total", "Messages deferred.", *_ENTITY): (Input.DEFER,),
    _counter(
        "onibus_expired_total",
        "Messages deleted when their time to live expired; dead-lettered ones are not counted.",
        *_ENTITY,
    ): (Input.EXPIRE,),
    _counter(
        "onibus_forwarded_total",
        "Messages forwarded or resubmitted to another entity.",
        *_ENTITY,
    ): (Input.MOVE,),
    _counter("onibus_activated_total", "Scheduled messages enqueued.", *_ENTITY): (Input.ACTIVATE,),
    _counter("onibus_cancelled_total", "Scheduled messages cancelled.", *_ENTITY): (Input.CANCEL,),
    _counter("onibus_purged_total", "Messages purged.", *_ENTITY): (Input.PURGE,),
}

STORE_UP = _gauge(
    "onibus_store_up",
    "1 if the store is open and its disk responds, otherwise 0.",
    labels=("store",),
)
STORE_SIZE = _gauge("onibus_store_size_bytes", "Size of the store on its disk.", labels=("store",))
STORE_FREE = _gauge("onibus_store_free_bytes", "Free space on the store's disk.", labels=("store",))
COMMITS = _seconds(
    "onibus_commit_seconds",
    "Time from the start of a commit until it is durable.",
    labels=("store",),
)
ALARMS = _counter("onibus_alarms_total", "Alarms raised.")
CLOCK = _gauge(
    "onibus_clock_in_doubt", "1 if the machine's clock is in doubt (`onibus clock`), otherwise 0."
)

REQUESTS = _counter(
    "onibus_http_requests_total",
    "Requests by status class, such as 2xx.",
    "method",
    "route",
    labels=("status",),
)
REQUEST_SECONDS = _seconds(
    "onibus_http_request_seconds",
    "Time from a complete request to its response, including the wait of a receive.",
    "method",
    "route",
)
CONNECTIONS = _gauge("onibus_http_connections", "Open HTTP connections.")
CONNECTIONS_OPENED = _counter("onibus_http_connections_opened_total", "HTTP connections accepted.")
CONNECTIONS_REFUSED = _counter(
    "onibus_http_connections_refused_total", "HTTP connections rejected at the connection limit."
)
AMQP_CONNECTIONS = _gauge("onibus_amqp_connections", "Open AMQP connections.")
AMQP_CONNECTIONS_OPENED = _counter(
    "onibus_amqp_connections_opened_total", "AMQP connections accepted, including WebSocket."
)
PEERS = _gauge("onibus_connections", "Open connections of all listeners.")
PEERS_ALLOWED = _gauge("onibus_connections_max", "Connection limit of all listeners.")
EVICTED = _counter(
    "onibus_connections_evicted_total",
    "Unauthenticated connections closed to make room for others.",
)
THROTTLED = _counter(
    "onibus_authentications_throttled_total",
    "Authentication attempts rejected unchecked after too many failures from their address.",
)

INFO = _gauge(
    "onibus_info", "Always 1, with versions as labels.", labels=("version", "python", "sqlite")
)
START = _gauge("onibus_start_time_seconds", "Start time of the server, in seconds since 1970.")

#: All families, in the order of the page.
METRICS = (
    *(MESSAGES, OLDEST, SIZE, IDS, IDS_BYTES, SESSIONS, NOISY, OFFLINE, WAITING, LAG),
    *(CLAIMS, CLAIMED, OLDEST_CLAIM, ENTITIES),
    *(ACCEPTED, DUPLICATES, DELIVERED, DEAD_LETTERED, FAILOVERS, *CHANGES),
    *(STORE_UP, STORE_SIZE, STORE_FREE, COMMITS, ALARMS, CLOCK),
    *(REQUESTS, REQUEST_SECONDS, CONNECTIONS, CONNECTIONS_OPENED, CONNECTIONS_REFUSED),
    *(AMQP_CONNECTIONS, AMQP_CONNECTIONS_OPENED, PEERS, PEERS_ALLOWED, EVICTED, THROTTLED),
    *(INFO, START),
)
