"""Routing: which partitions a send goes to, and which take over when one is down."""

from __future__ import annotations

from onibus.broker.entity import Entity
from onibus.core.errors import OnibusError, PartitionOffline, QuotaExceeded
from onibus.core.path.admit import Prepared
from onibus.core.path.route import partition_of
from onibus.shard.seat import Seat

#: A partition, the positions of its messages in the batch (not needed if it gets all), and whether
#: any other partition would do.
Part = tuple[Seat, list[int], bool]


def route(entity: Entity, batch: list[Prepared]) -> list[Part]:
    """Return the partitions of a batch's messages; keyless ones share one (P4)."""
    if len(entity.seats) == 1:
        seat = entity.seats[0]
        check_room(seat, size_of(batch))
        return [(seat, [], False)]
    keyed: dict[int, list[int]] = {}
    keyless: list[int] = []
    for position, prepared in enumerate(batch):
        if prepared.key is None:
            keyless.append(position)
        else:
            index = partition_of(prepared.key, len(entity.seats))
            keyed.setdefault(index, []).append(position)
    parts: list[Part] = []
    for index, positions in keyed.items():
        seat = entity.seats[index]
        check_room(seat, size_of([batch[position] for position in positions]))
        parts.append((seat, positions, False))
    if not keyless:
        return parts
    size = size_of([batch[position] for position in keyless])
    seat = any_seat(entity, size)
    together = [positions for one, positions, _ in parts if one is seat]
    if together:
        # Their turn has come to a partition that gets messages by their keys as well.
        together[0][:] = sorted(together[0] + keyless)
    else:
        parts.append((seat, keyless, True))
    return parts


def seat_of(entity: Entity, prepared: Prepared) -> Seat:
    """Return the partition of one message."""
    size = len(prepared.row)
    if len(entity.seats) > 1:
        if prepared.key is None:
            return any_seat(entity, size)
        seat = entity.seats[partition_of(prepared.key, len(entity.seats))]
    else:
        seat = entity.seats[0]
    check_room(seat, size)
    return seat


def seat_of_key(entity: Entity, key: str | None) -> Seat:
    """Return the partition that a key chooses, or the only one."""
    return entity.seats[partition_of(key or "", len(entity.seats))]


def size_of(batch: list[Prepared]) -> int:
    """Return how much messages count towards a quota."""
    return sum([len(prepared.row) for prepared in batch])


def any_seat(entity: Entity, size: int) -> Seat:
    """Return the next partition in turn that is up and has room (P5)."""
    refusal: OnibusError | None = None
    for _ in entity.seats:
        seat = entity.seats[entity.next_send % len(entity.seats)]
        entity.next_send += 1
        try:
            check_room(seat, size)
            seat.store.check_disk(size, routing=True)
        except (PartitionOffline, QuotaExceeded) as error:
            refusal = error
        else:
            entity.tally.failovers += refusal is not None
            return seat
    assert refusal is not None
    raise refusal


def check_room(seat: Seat, size: int) -> int:
    """Reject messages that do not fit into a partition any more; return how many bytes would."""
    free = seat.free_bytes()
    if size > free:
        where = f"partition {seat.index} of " if len(seat.entity.seats) > 1 else ""
        raise QuotaExceeded(
            f"{where}{seat.entity.name} is full: {max(free, 0)} bytes are free and {size} needed"
        )
    return free
