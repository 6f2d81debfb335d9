"""Deliberate mistakes in topics, works over several stores, and what moves by itself."""

from __future__ import annotations

from typing import Any

from onibus.core import partition as partition_module
from onibus.core.block import NEVER
from onibus.core.commands import CarryOut, Publish, Purge, Settle, Stage
from onibus.core.errors import OnibusError
from onibus.core.fans import Fans
from onibus.core.handlers import HANDLERS
from onibus.core.inspection import Filter
from onibus.core.lifecycle import Input, State
from onibus.core.path import bulk, enqueue, fan_out, recover
from onibus.core.path import claim as claim_module
from onibus.core.path import work as work_module
from onibus.core.records import STAGED, WriteBatch
from onibus.core.rules.rule import Rule, compile_rule
from onibus.directory import claim_settling, claiming, namespace, producers, works
from onibus.gateway import forwarding, moving, transacting
from onibus.shard import erasing, tidying
from onibus.shard.replies import KeptReply
from onibus.shard.runner import durable
from tests.simulation.mutating import Mutant

# Topics


def release_too_much(original: Any) -> Any:
    def release(self: Any, first: int, last: int) -> int:
        self.counts[self.ordinals == first] = 1
        return int(original(self, first, last))

    return release


def take_unknown_for_true(original: Any) -> Any:
    def compiled(rule: Any) -> Any:
        made = compile_rule(rule)
        condition = made.condition
        made.condition = lambda subject: condition(subject) is not False
        return made

    return property(compiled)


def lose_overlays(original: Any) -> Any:
    def recover_marks(subscription: Any, rows: Any) -> None:
        original(subscription, [row for row in rows if row[3] != State.ACTIVE])

    return recover_marks


def keep_rows_of_the_deleted(original: Any) -> Any:
    def unsubscribe(partition: Any, number: int) -> Any:
        partition.subscriptions.pop(number)
        return iter(())

    return unsubscribe


def forget_a_member(original: Any) -> Any:
    def decode_fans(fans: bytes, first: int, rows: int) -> Any:
        ordinals, taken = original(fans, first, rows)
        return ordinals, {number: members[: max(len(members) - 1, 1)] if number else members
                          for number, members in taken.items()}  # fmt: skip

    return decode_fans


def let_failures_in(original: Any) -> Any:
    def fail(subscription: Any, share: Any, at: int, error: Any) -> None:
        share.positions.append(at)

    return fail


def keep_the_old_session(original: Any) -> Any:
    return lambda changed, message: True


def make_one_copy(original: Any) -> Any:
    return lambda partition, copies, *rest: original(partition, copies[:1], *rest)


# Works


def publish_without_decision(original: Any) -> Any:
    def decide_in(self: Any, work: Any, store: Any, loop: Any, own: Any) -> Any:
        commands = {partition: CarryOut(part, None, work.id) for partition, part in own.items()}
        found = store.apply_together(commands, self._broker.clock.now())
        work.results |= {partition.id: sent for partition, sent in found.items()}
        yield durable([store])

    return decide_in


def change_and_write_nothing(original: Any) -> Any:
    def handler(partition: Any, command: Any, now: int, wall: int, out: Any) -> Any:
        result = original(partition, command, now, wall, WriteBatch())
        partition.dirty = False
        return result

    return handler


def forget_decisions(original: Any) -> Any:
    return lambda self, store: None


def forget_doubts(original: Any) -> Any:
    def opened(self: Any, store: Any) -> None:
        if not self._works:
            original(self, store)

    return opened


def leave_what_was_published(original: Any) -> Any:
    def publish(partition: Any, command: Publish, now: int, wall: int, out: Any) -> Any:
        result = original(partition, command, now, wall, out)
        out.tables[STAGED].pop((command.work, partition.id, command.piece))
        return result

    return publish


def store_when_staged(original: Any) -> Any:
    def stage(partition: Any, command: Stage, now: int, wall: int, out: Any) -> None:
        original(partition, command, now, wall, out)
        batch: Any = command.part.batch
        found = enqueue.find_duplicates(partition, batch, now)
        enqueue.send(partition, batch, found, now, now, out)

    return stage


def remember_when_staged(original: Any) -> Any:
    def stage(partition: Any, command: Stage, now: int, wall: int, out: Any) -> None:
        original(partition, command, now, wall, out)
        batch: Any = command.part.batch
        hashes = [identity for one in batch for identity in one.identities]
        partition.ids.record_all(hashes, [1] * len(hashes), partition.seen)
        partition.ids.write(out)

    return stage


def do_not_wait(original: Any) -> Any:
    return False


def do_nothing(original: Any) -> Any:
    return lambda *given: None


def do_without_staging(original: Any) -> Any:
    def do(self: Any, parts: Any, now: int, reply: Any) -> None:
        for store in {partition.store for partition in parts}:
            own = {partition: part for partition, part in parts.items() if partition.store is store}
            original(self, own, now, reply)

    return do


def publish_what_is_up_only(original: Any) -> Any:
    def decided(self: Any, work: Any) -> None:
        original(self, work)
        for partition_id in list(work.waiting):
            if self._broker.partition(partition_id).partition is None:
                self._published(work, partition_id, KeptReply())

    return decided


def settle_what_is_held(original: Any) -> Any:
    def find(self: Any, *given: Any) -> None:
        try:
            original(self, *given)
        except OnibusError:
            return

    return find


def commit_instead(original: Any) -> Any:
    return lambda self: self.commit(KeptReply())


# Forwarding


def leave_at_the_source(original: Any) -> Any:
    def parts(self: Any, **given: Any) -> Any:
        found = original(self, **given)
        for part in found.values():
            part.changes = part.changes[1:]
        return found

    return parts


def count_no_hops(original: Any) -> Any:
    def forwarded(received: Any, **named: Any) -> Any:
        message = original(received, **named)
        message.hop_count = 0
        return message

    return forwarded


# Producers and claims


def publish_any_batch(original: Any) -> Any:
    return lambda self, entity, note: None


def forget_the_last_batch(original: Any) -> Any:
    def opened(self: Any, store: Any) -> None:
        original(self, store)
        self._last = {}

    return opened


def take_any_content(original: Any) -> Any:
    return lambda producer, last, attempts, notes: None


def compare_the_order_too(original: Any) -> Any:
    def content(notes: Any) -> Any:
        digest, count = original(notes)
        return hash((digest, *[note.attempt for note in notes])), count

    return content


def forget_the_content(original: Any) -> Any:
    def opened(self: Any, store: Any) -> None:
        original(self, store)
        for key, last in self._last.items():
            self._last[key] = producers.Last(last.batch, last.checkpoint)

    return opened


def leave_the_blocks(original: Any) -> Any:
    def forget(work: int, partition: int, pieces: Any, blocks: Any, out: Any) -> None:
        original(work, partition, pieces, [], out)

    return forget


def leave_duplicates(original: Any) -> Any:
    return lambda staged, out: None


def expire_never(original: Any) -> Any:
    def pack(first: int, stamp: int, arrived: int, expires: Any, *rest: Any) -> bytes:
        return bytes(original(first, stamp, arrived, expires * 0 + NEVER, *rest))

    return pack


def publish_all_that_is_staged(original: Any) -> Any:
    return lambda notes, batch, attempts: list(notes)


def read_the_newest(original: Any) -> Any:
    def claimed(subscription: Any, owner: str, limit: Any = None) -> Any:
        found = original(subscription, owner, limit)
        if found and subscription.state(found[-1] + 1) is State.ACTIVE:
            found[-1] += 1
        return found

    return claimed


def commit_again(original: Any) -> Any:
    def commit(claims: Any, name: str, reader: str, number: int, *rest: Any) -> None:
        known = claims.find(name, reader, rest[1])
        if number in known.committed:
            entity = claims.broker.find(name)
            partition = next(
                partition for partition in entity.partitions if partition.core is not None
            )
            command = Purge(entity.number, Filter(state="active"), 0, 1)
            claims.broker.use(entity, partition, command)
        original(claims, name, reader, number, *rest)

    return commit


def claim_before_it_is_durable(original: Any) -> Any:
    def sync(self: Any) -> None:
        self._held.content.partitions = sorted(
            (partition.index, count) for partition, count in self._taken.items()
        )
        self._staged(None)

    return sync


def count_what_is_released(original: Any) -> Any:
    def give_back(subscription: Any, ordinal: int, event: Any, now: int, out: Any) -> None:
        original(subscription, ordinal, Input.ABANDON, now, out)

    return give_back


def raise_the_floor(original: Any) -> Any:
    return lambda partition, wall, out: partition.log.raise_floor(NEVER, out)


_TOPICS = ("news", "new-news")
_OVER_STORES = ("keyed", "spread", "plain")
_CHAIN = ("hop-0",)


def decide_without_rules(original: Any) -> Any:
    """A transaction whose rules are in memory only."""
    return lambda self, batch: None


def use_rules_before_they_are_decided(original: Any) -> Any:
    def begin(self: Any) -> None:
        original(self)
        for entity, rules in self.rules.items():
            self._namespace.take_rules(entity, rules)

    return begin


OF_WORKS = {
    "rules of a transaction are not stored": Mutant(
        namespace.RuleDecision, "write", decide_without_rules, _TOPICS
    ),
    "rules of a transaction hold before it is decided": Mutant(
        namespace.RuleDecision, "begin", use_rules_before_they_are_decided, _TOPICS
    ),
    "a row goes while somebody wants it": Mutant(Fans, "release", release_too_much, _TOPICS),
    "unknown is true": Mutant(Rule, "compiled", take_unknown_for_true, _TOPICS),
    "an overlay is lost at restart": Mutant(recover, "_recover_marks", lose_overlays, _TOPICS),
    "rows of a deleted subscription are kept": Mutant(
        erasing, "unsubscribe", keep_rows_of_the_deleted, _TOPICS
    ),
    "a subscription forgets a message at restart": Mutant(
        recover, "decode_fans", forget_a_member, _TOPICS
    ),
    "a failing filter lets in": Mutant(fan_out, "_fail", let_failures_in, _TOPICS),
    "a changed session changes nothing": Mutant(
        fan_out, "_lies_over", keep_the_old_session, ("in-order", "new-news")
    ),
    "two rules make one copy": Mutant(enqueue, "_store_copies", make_one_copy, ("news",)),
    "publish without a decision": Mutant(
        works.Works, "_decide_in", publish_without_decision, _OVER_STORES
    ),
    "a decision of a store is forgotten": Mutant(
        works.Works, "read", forget_decisions, _OVER_STORES
    ),
    "a handler changes its partition and writes nothing": Mutant(
        HANDLERS, Settle, change_and_write_nothing, ("plain", "fading", "sessions")
    ),
    "decisions are forgotten at restart": Mutant(
        works.Works, "open", forget_decisions, _OVER_STORES
    ),
    "what was in doubt stays so": Mutant(works.Works, "open", forget_doubts, _OVER_STORES),
    "publish again after a restart": Mutant(
        HANDLERS, Publish, leave_what_was_published, _OVER_STORES
    ),
    "a purge overtakes sends": Mutant(Purge, "after_sends", do_not_wait, ("plain", "spread")),
    "staged messages are stored": Mutant(HANDLERS, Stage, store_when_staged, _OVER_STORES),
    "ids are remembered when staged": Mutant(
        HANDLERS, Stage, remember_when_staged, ("keyed", "everything")
    ),
    "what a work will change is given out": Mutant(
        work_module, "_pin", do_nothing, ("plain", "fading", "mortal")
    ),
    "what will not happen stays staged": Mutant(
        works.Works, "_unstage", do_nothing, ("plain", "keyed", "spread")
    ),
    "several stores, no staging": Mutant(works.Works, "do", do_without_staging, _OVER_STORES),
    "a store that was down forgets its part": Mutant(
        works.Works, "_decided", publish_what_is_up_only, _OVER_STORES
    ),
    "a store does not go on with its works": Mutant(
        works.Works, "store_opened", do_nothing, _OVER_STORES
    ),
    "half a transaction": Mutant(
        transacting.OpenTransaction, "_find", settle_what_is_held, ("plain", "fading", "mortal")
    ),
    "a rollback commits": Mutant(
        transacting.OpenTransaction, "rollback", commit_instead, ("plain", "fading", "mortal")
    ),
    "what is forwarded stays as well": Mutant(moving.Move, "parts", leave_at_the_source, _CHAIN),
    "an older batch is published": Mutant(
        producers.Producers, "_check_new", publish_any_batch, _OVER_STORES
    ),
    "the last batch is forgotten at restart": Mutant(
        producers.Producers, "open", forget_the_last_batch, _OVER_STORES
    ),
    "the last batch again may have any content": Mutant(
        producers, "_check_same", take_any_content, _OVER_STORES
    ),
    "the same rows of other attempts differ": Mutant(
        producers, "_content", compare_the_order_too, _OVER_STORES
    ),
    "the content is forgotten at restart": Mutant(
        producers.Producers, "open", forget_the_content, _OVER_STORES
    ),
    "every attempt is published": Mutant(
        producers, "_choose", publish_all_that_is_staged, _OVER_STORES
    ),
    "blocks of what was never published stay": Mutant(
        work_module, "forget", leave_the_blocks, ("plain", "keyed", "everything")
    ),
    "blocks of rows with duplicates stay": Mutant(
        bulk, "unstage", leave_duplicates, ("keyed", "everything")
    ),
    "rows that were staged never expire": Mutant(
        bulk, "pack_entries", expire_never, ("mortal", "fading")
    ),
    "a claim that is read again has other messages": Mutant(
        claim_module, "claimed", read_the_newest, ("plain", "spread", "fading")
    ),
    "a claim committed again completes others": Mutant(
        claim_settling, "commit", commit_again, ("plain", "spread", "fading")
    ),
    "a claim is decided before its messages are held": Mutant(
        claiming.Staging, "_sync", claim_before_it_is_durable, ("plain", "spread", "keyed")
    ),
    "giving a claim back counts a delivery": Mutant(
        claim_module, "give_back", count_what_is_released, ("plain", "spread", "fading")
    ),
    "nothing is kept for readers": Mutant(
        partition_module.Partition, "keep_for", do_nothing, ("plain", "fading", "spread")
    ),
    "compaction drops what readers want": Mutant(
        tidying, "forget_retained", raise_the_floor, ("plain", "fading", "spread")
    ),
    "hops are not counted": Mutant(forwarding, "_forwarded", count_no_hops, _CHAIN),
    "forwarding gives up": Mutant(forwarding.Forwarding, "_later", do_nothing, _CHAIN),
}
