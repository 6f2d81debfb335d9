"""Readers that keep rows for a lake before its first capture of an entity.

A capture needs Spark, which takes time to start. Until then a reserved reader keeps each row and
each outcome from the first on. The first capture takes the lake's own readers, which start at the
earliest row, and then deletes the reserved ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress

from onibus.bus import Bus
from onibus.client import Client
from onibus.core.errors import EntityExists, EntityNotFound, OnibusError
from onibus.directory.standing_readers import StandingReader
from onibus.spark.lake import folder_of, tables_of
from onibus.spark.lake_capture import IDLE_MS
from onibus.spark.lake_files import LakeFiles

_log = logging.getLogger("onibus.pipeline")


def reserved_name(address: str, table: str) -> str:
    """Return the name of the reserved reader of a lake's table."""
    return f"lake-reserved-{hashlib.sha256(address.encode()).hexdigest()[:16]}-{table}"


def reserved_readers(place: str, entity: str) -> list[StandingReader]:
    """Return the readers that an entity needs before its first capture."""
    # Without a look at the lake: the server creates an entity at this moment.
    address = LakeFiles(place, folder_of(entity)).address
    return [
        StandingReader(
            name=reserved_name(address, table), log=table, address=address, idle_ms=IDLE_MS
        )
        # A message that is kept may end at any moment.
        for table in reversed(tables_of(entity))
    ]


async def reserve_all(bus: Bus, place: str) -> None:
    """Keep rows for a lake, of all entities that it has no readers of and of each new one."""
    namespace = bus.broker.namespace
    namespace.standing = lambda entity: reserved_readers(place, entity)
    wanted = []
    for name in namespace.entities:
        there = {(reader.address, reader.log) for reader in bus.readers(name)}
        wanted += [
            (name, one)
            for one in reserved_readers(place, name)
            if (one.address, one.log) not in there
        ]

    async def create(entity: str, one: StandingReader) -> None:
        try:
            await bus.create_reader(
                entity, one.name, log=one.log, idle_ms=one.idle_ms, address=one.address
            )
        except OnibusError as error:
            # The capture creates its own readers once it can.
            _log.warning("cannot retain rows for a lake", extra={"entity": entity, "error": error})

    await asyncio.gather(*(create(entity, one) for entity, one in wanted))


def reserve(client: Client, place: str, entity: str) -> None:
    """Keep the rows of an entity for a lake that has no readers of it yet."""
    there = {(reader.address, reader.log) for reader in client.readers(entity)}
    for one in reserved_readers(place, entity):
        if (one.address, one.log) not in there:
            # Another capture may be doing the same.
            with suppress(EntityExists):
                client.create_reader(
                    entity, one.name, log=one.log, idle_ms=one.idle_ms, address=one.address
                )


def release(client: Client, place: str, entity: str) -> None:
    """Delete the reserved readers: the lake has its own now."""
    there = {reader.name for reader in client.readers(entity)}
    for one in reserved_readers(place, entity):
        if one.name in there:
            with suppress(EntityNotFound):
                client.delete_reader(entity, one.name)
