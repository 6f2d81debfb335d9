"""The native API over real sockets: what the bus can do, asked by HTTP."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus
from tests.bus_helpers import PATIENCE_S, run, until_waited_for
from tests.server.http_helpers import serving

SUBSCRIPTION = "t%2Fsubscriptions%2Fs"


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [message["sequence_number"] for message in messages]


# Entities


@run
async def test_queues_are_made_shown_changed_and_deleted() -> None:
    async with serving() as client:
        response = await client.ask("PUT", "/queues/Orders%2FEU", {"lock_duration_ms": 5_000})
        assert response.status_code == 201
        made = response.json()
        assert (made["name"], made["kind"]) == ("orders/eu", "queue")
        assert made["settings"]["lock_duration_ms"] == 5_000
        assert await client.do("GET", "/queues") == {"names": ["orders/eu"]}
        changed = await client.do("PATCH", "/queues/orders%2Feu", {"max_delivery_count": 3})
        assert changed["settings"]["lock_duration_ms"] == 5_000
        assert changed["settings"]["max_delivery_count"] == 3
        assert await client.do("GET", "/queues/ORDERS%2FEU") == changed
        await client.refused(409, "entity-exists", "PUT", "/queues/orders%2Feu", {})
        await client.refused(
            409, "unchangeable", "PATCH", "/queues/orders%2Feu", {"requires_session": True}
        )
        problem = await client.refused(
            400, "invalid-argument", "PUT", "/queues/x", {"lock_duration": 1}
        )
        assert "did you mean lock_duration_ms?" in problem["detail"]
        await client.refused(400, "invalid-name", "PUT", "/queues/a%20b", {})
        assert (await client.ask("DELETE", "/queues/orders%2Feu")).status_code == 204
        await client.refused(404, "entity-not-found", "GET", "/queues/orders%2Feu")


@run
@pytest.mark.parametrize("name", ["name", "self", "settings", "topic", "rules"])
async def test_no_setting_is_taken_for_another_argument(name: str) -> None:
    async with serving() as client:
        for path in ("/queues/x", "/topics/x"):
            await client.refused(400, "invalid-argument", "PUT", path, {name: "x"})


@run
async def test_topics_subscriptions_and_rules() -> None:
    async with serving() as client:
        await client.do("PUT", "/topics/t", {})
        size = {"type": "sql", "expression": "size > @n", "parameters": {"@n": 5}}
        moment = {"time": "2026-01-01T00:00:00+00:00"}
        rules = [
            {"name": "big", "filter": size, "action": {"expression": "SET big = TRUE"}},
            {"name": "old", "filter": {"type": "correlation", "properties": {"at": moment}}},
        ]
        body = {"max_delivery_count": 2, "rules": rules}
        made = await client.do("PUT", f"/subscriptions/{SUBSCRIPTION}", body)
        assert made["settings"]["max_delivery_count"] == 2
        told = await client.do("GET", f"/subscriptions/{SUBSCRIPTION}/rules")
        assert [rule["name"] for rule in told["rules"]] == ["big", "old"]
        assert told["rules"][0]["filter"] == size
        assert told["rules"][1]["filter"]["properties"] == {"at": moment}
        topic = await client.do("GET", "/topics/t")
        assert topic["subscriptions"] == ["t/subscriptions/s"]
        await client.send("t", "small", properties={"size": 1})
        await client.send("t", "large", properties={"size": 9})
        await client.send("t", "old", properties={"at": moment})
        received = await client.receive("t/subscriptions/s")
        assert bodies(received) == ["large", "old"]
        assert received[0]["properties"] == {"size": 9, "big": True, "RuleName": "big"}
        assert received[1]["properties"] == {"at": moment}

        await client.do("DELETE", f"/subscriptions/{SUBSCRIPTION}/rules/big")
        await client.do("POST", f"/subscriptions/{SUBSCRIPTION}/rules", {"name": "all of it"})
        await client.do("DELETE", f"/subscriptions/{SUBSCRIPTION}/rules/all%20of%20it")
        problem = await client.refused(
            400,
            "invalid-filter",
            "POST",
            f"/subscriptions/{SUBSCRIPTION}/rules",
            {"name": "bad", "filter": {"type": "sql", "expression": "a >"}},
        )
        assert problem["position"] == 3
        await client.refused(400, "invalid-name", "PUT", "/subscriptions/just-a-name", {})
        await client.do("PATCH", f"/subscriptions/{SUBSCRIPTION}", {"max_delivery_count": 4})
        await client.do("DELETE", f"/subscriptions/{SUBSCRIPTION}")
        await client.do("DELETE", "/topics/t")
        assert await client.do("GET", "/topics") == {"names": []}


# Messages


@run
@pytest.mark.promise("X9")
async def test_answers_to_sends_have_numbers_and_tell_duplicates() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"requires_duplicate_detection": True})
        one = await client.on("q", "messages", body="1", message_id="a")
        two = await client.on("q", "messages", body="2", message_id="a")
        assert (one, two) == ({"sequence_number": 1}, {"sequence_number": 1, "duplicate_of": 1})
        batch = await client.on("q", "batch", messages=[{"message_id": x} for x in "bab"])
        assert batch == {
            "accepted": 1,
            "duplicates": 2,
            "sent": [
                {"sequence_number": 2},
                {"sequence_number": 1, "duplicate_of": 1},
                {"sequence_number": 2, "duplicate_of": 2},
            ],
        }
        listed = (await client.do("GET", "/entities/q/duplicates"))["duplicates"]
        assert [one["duplicate_of"] for one in listed] == [1, 1, 2]
        assert [one["message_id"] for one in listed] == ["a", "a", "b"]


@run
async def test_a_message_comes_back_as_it_went_in() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        fields = {
            "message_id": "id",
            "partition_key": "key",
            "subject": "subject",
            "correlation_id": "correlation",
            "content_type": "text/plain",
            "to": "to",
            "reply_to": "reply",
            "reply_to_session_id": "session",
            "time_to_live_ms": 60_000,
            "properties": {
                "text": "ä\u0000€",
                "number": 2**63 - 1,
                "fraction": 0.1,
                "yes": True,
                "nothing": None,
                "bytes": {"binary": base64.b64encode(b"\x00\xff").decode()},
                "moment": {"time": "2026-11-16T12:00:00.000123+02:00"},
            },
        }
        await client.on("q", "messages", body="Bödy\n", **fields)
        await client.on("q", "messages", body_base64=base64.b64encode(b"\xff\x00").decode())
        text, binary = await client.receive("q")
        assert text["body"] == "Bödy\n"
        moment = text["properties"].pop("moment")
        assert fields["properties"].pop("moment")  # type: ignore[attr-defined]
        assert moment == {"time": "2026-11-16T10:00:00.000123+00:00"}
        assert {name: text[name] for name in fields} == fields
        assert base64.b64decode(binary["body_base64"]) == b"\xff\x00"
        assert "body" not in binary


@run
async def test_settling() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"max_delivery_count": 10})
        await client.send("q", "done", "back", "aside", "dead", "kept")
        done, back, aside, dead, kept = await client.receive("q")
        await client.on("q", "complete", tokens=[done["token"]])
        await client.on("q", "abandon", token=back["token"], properties={"tried": 1})
        await client.on("q", "defer", token=aside["token"])
        await client.on("q", "dead-letter", token=dead["token"], reason="r", description="d")
        renewed = await client.on("q", "renew", token=kept["token"])
        assert renewed["locked_until_ms"] >= kept["locked_until_ms"]
        (again,) = await client.receive("q")
        assert (again["body"], again["delivery_count"]) == ("back", 1)
        assert again["properties"] == {"tried": 1}
        (letter,) = await client.receive("q", dead_letters=True)
        assert (letter["dead_letter_reason"], letter["dead_letter_description"]) == ("r", "d")
        answer = await client.on("q", "receive-deferred", numbers=numbers([aside]))
        assert bodies(answer["messages"]) == ["aside"]
        lost = {"tokens": [done["token"]]}
        await client.refused(410, "lock-lost", "POST", "/entities/q/complete", lost)
        # All or none: the token that holds nothing keeps the other from being completed.
        both = {"tokens": [kept["token"], done["token"]]}
        await client.refused(410, "lock-lost", "POST", "/entities/q/complete", both)
        await client.on("q", "complete", tokens=[kept["token"]])
        shown = await client.do("GET", "/queues/q")
        assert (shown["dead_lettered_count"], shown["held_count"]) == (1, 3)


@run
async def test_a_receive_waits_for_a_message_and_not_longer_than_it_says() -> None:
    bus = await Bus.ephemeral()
    async with serving(bus=bus) as client:
        await client.do("PUT", "/queues/q", {})
        waiting = asyncio.create_task(client.receive("q", wait_ms=20_000, delete=True))
        await until_waited_for(bus, "q")
        await client.send("q", "here")
        assert bodies(await waiting) == ["here"]
        began = time.monotonic()
        assert await client.receive("q", wait_ms=200) == []
        assert time.monotonic() - began > 0.15
        body = {"wait_ms": 20_001}
        await client.refused(400, "invalid-argument", "POST", "/entities/q/receive", body)


@run
async def test_scheduled_deferred_and_undeferred() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        due = int(time.time() * 1_000) + 60_000
        one = await client.on("q", "schedule", message={"body": "later"}, due_ms=due)
        two = await client.on("q", "schedule", message={"body": "never"}, due_ms=due)
        await client.on("q", "cancel-scheduled", numbers=[two["sequence_number"]])
        again = {"numbers": [two["sequence_number"]]}
        path = "/entities/q/cancel-scheduled"
        await client.refused(404, "message-not-found", "POST", path, again)
        peeked = (await client.on("q", "peek", where={"state": "scheduled"}))["messages"]
        assert numbers(peeked) == [one["sequence_number"]]
        await client.send("q", "aside")
        (aside,) = await client.receive("q")
        await client.on("q", "defer", token=aside["token"])
        assert await client.receive("q") == []
        await client.on("q", "undefer", numbers=numbers([aside]))
        assert bodies(await client.receive("q")) == ["aside"]


@run
async def test_peek_and_purge_with_filters() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"requires_duplicate_detection": True})
        for number in range(6):
            await client.send(
                "q", f"body {number}", message_id=f"m{number}", properties={"n": number}
            )
        where = {"sql": "n >= @low", "sql_parameters": {"@low": 3}}
        found = (await client.on("q", "peek", where=where))["messages"]
        assert bodies(found) == ["body 3", "body 4", "body 5"]
        found = (await client.on("q", "peek", start=4, limit=1))["messages"]
        assert numbers(found) == [4]
        found = (await client.on("q", "peek", where={"body_contains": "y 2"}))["messages"]
        assert numbers(found) == [3]
        assert await client.on("q", "purge", where=where) == {"count": 3}
        assert await client.on("q", "purge", forget_ids=True) == {"count": 3}
        assert await client.on("q", "messages", message_id="m1") == {"sequence_number": 7}


@run
async def test_dead_letters_are_resubmitted() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        await client.do("PUT", "/queues/other", {})
        await client.send("q", "a", "b")
        for message in await client.receive("q"):
            await client.on("q", "dead-letter", token=message["token"])
        path = "dead-letters/resubmit"
        dry = await client.on("q", path, where={}, dry_run=True)
        assert dry["moved"] == [
            {"sequence_number": 1, "new_sequence_number": None},
            {"sequence_number": 2, "new_sequence_number": None},
        ]
        assert (await client.on("q", path, numbers=[1]))["moved"][0]["new_sequence_number"] == 3
        await client.on("q", path, where={}, to="other")
        assert bodies(await client.receive("q")) == ["a"]
        assert bodies(await client.receive("other")) == ["b"]
        await client.refused(400, "invalid-argument", "POST", f"/entities/q/{path}", {})


# Sessions and FIFO queues


@run
async def test_a_session_over_several_requests() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"requires_session": True})
        await client.send("q", "1", "2", session_id="a/b")
        held = await client.on("q", "sessions/accept", owner="me")
        assert held["session_id"] == "a/b"
        session = {"session_id": held["session_id"], "token": held["token"]}
        other = {"session_id": "a/b"}
        await client.refused(409, "session-locked", "POST", "/entities/q/sessions/accept", other)
        await client.refused(404, "no-session", "POST", "/entities/q/sessions/accept", {})
        received = (await client.on("q", "sessions/receive", **session, limit=2))["messages"]
        assert bodies(received) == ["1", "2"]
        await client.on("q", "complete", tokens=[received[0]["token"]])
        await client.on("q", "defer", token=received[1]["token"])
        deferred = await client.on("q", "sessions/receive-deferred", **session, numbers=[2])
        assert bodies(deferred["messages"]) == ["2"]
        await client.on("q", "sessions/set-state", **session, state="half way")
        state = await client.on("q", "sessions/get-state", **session)
        assert state == {"state": "half way", "state_base64": None}
        assert (await client.on("q", "sessions/renew", **session))["locked_until_ms"]
        (listed,) = (await client.do("GET", "/entities/q/sessions"))["sessions"]
        assert (listed["session_id"], listed["lock_holder"]) == ("a/b", "me")
        await client.on("q", "sessions/close", **session)
        path = "/entities/q/sessions/renew"
        await client.refused(410, "session-lock-lost", "POST", path, session)
        # A token that was never given out holds nothing and harms nothing.
        for stranger in ("f" * 32, "0" * 32):
            for session_id in ("a/b", "no"):
                body = {"session_id": session_id, "token": stranger}
                await client.refused(410, "session-lock-lost", "POST", path, body)
        assert await client.do("GET", "/alarms") == {"alarms": []}


@run
async def test_a_fifo_queue_gives_the_same_attempt_again() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"fifo": True})
        await client.send("q", "1", session_id="g", message_id="1")
        await client.send("q", "2", session_id="g", message_id="2")
        first = await client.on("q", "fifo/receive", visibility_ms=60_000)
        assert bodies(first["messages"]) == ["1"]
        again = await client.on("q", "fifo/receive", attempt_id=first["attempt_id"])
        assert again["messages"][0]["token"] == first["messages"][0]["token"]
        assert (await client.on("q", "fifo/receive"))["messages"] == []
        token = first["messages"][0]["token"]
        await client.on("q", "fifo/visibility", token=token, visibility_ms=0)
        both = (await client.on("q", "fifo/receive", limit=10))["messages"]
        assert bodies(both) == ["1", "2"]
        await client.on("q", "complete", tokens=[one["token"] for one in both])
        await client.refused(409, "invalid-operation", "POST", "/entities/q/receive", {})


# Several things at once


@run
async def test_a_transaction_is_one_request() -> None:
    async with serving() as client:
        for name in ("a", "b"):
            await client.do("PUT", f"/queues/{name}", {})
        await client.send("a", "1", "2", "3")
        one, two, three = await client.receive("a")
        done = await client.do(
            "POST",
            "/transactions",
            {
                "sends": [{"entity": "b", "messages": [{"body": "x"}, {"body": "y"}]}],
                "settlements": [
                    {"entity": "a", "tokens": [one["token"]]},
                    {
                        "entity": "a",
                        "tokens": [two["token"]],
                        "verb": "abandon",
                        "delay_ms": 60_000,
                    },
                    {
                        "entity": "a",
                        "tokens": [three["token"]],
                        "verb": "dead-letter",
                        "reason": "r",
                    },
                ],
            },
        )
        assert done == {"sent": [{"sequence_number": 1}, {"sequence_number": 2}]}
        assert await client.receive("a") == []
        (letter,) = await client.receive("a", dead_letters=True)
        assert letter["dead_letter_reason"] == "r"
        # The lock is lost: nothing of it happens.
        body = {
            "sends": [{"entity": "b", "messages": [{"body": "z"}]}],
            "settlements": [{"entity": "a", "tokens": [one["token"]]}],
        }
        await client.refused(410, "lock-lost", "POST", "/transactions", body)
        assert bodies(await client.receive("b")) == ["x", "y"]
        await client.refused(400, "invalid-argument", "POST", "/transactions", {})


@run
async def test_claims() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        assert await client.on("q", "claims", reader="r", limit=10) == {"claim": None}
        await client.send("q", "1", "2", "3")
        claim = (await client.on("q", "claims", reader="r/1", limit=2))["claim"]
        assert claim["count"] == 2
        at = f"claims/r%2F1/{claim['number']}"
        read = await client.on("q", f"{at}/read", incarnation=claim["incarnation"])
        assert bodies(read["messages"]) == ["1", "2"]
        (listed,) = (await client.do("GET", "/entities/q/claims"))["claims"]
        assert listed["read"] is True
        letters = [{"sequence_number": 2, "reason": "bad"}]
        await client.on("q", f"{at}/commit", dead_letters=letters)
        await client.on("q", f"{at}/commit", dead_letters=letters)
        claim = (await client.on("q", "claims", reader="r/1", limit=2))["claim"]
        await client.on("q", f"claims/r%2F1/{claim['number']}/release")
        assert bodies(await client.receive("q")) == ["3"]
        assert bodies(await client.receive("q", dead_letters=True)) == ["2"]
        path = "/entities/q/claims/r/9/read"
        await client.refused(404, "claim-not-found", "POST", path, {})
        await client.refused(400, "invalid-argument", "POST", "/entities/q/claims/r/x/read", {})


@run
async def test_staged_sends() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        batch = {"messages": [{"body": "a"}, {"body": "b"}]}
        whose = {"producer": "p", "batch": 1, "task": 0, "attempt": 0}
        await client.do("POST", "/entities/q/staged", batch, params=whose)
        await client.do("POST", "/entities/q/staged", batch, params=whose | {"attempt": 1})
        staged = (await client.do("GET", "/entities/q/staged"))["staged"]
        assert [(one["attempt"], one["count"]) for one in staged] == [(0, 2), (1, 2)]
        assert await client.receive("q") == []
        publish = {"producer": "p", "batch": 1, "attempts": [[0, 1]]}
        done = await client.on("q", "staged/publish", **publish)
        assert done == {"accepted": 2, "duplicates": 0, "again": False}
        assert (await client.on("q", "staged/publish", **publish))["again"] is True
        assert bodies(await client.receive("q")) == ["a", "b"]
        await client.do("POST", "/entities/q/staged", batch, params=whose | {"batch": 2})
        assert await client.on("q", "staged/discard", producer="p") == {"count": 1}
        old = {"producer": "p", "batch": 0, "attempts": [[0, 0]]}
        path = "/entities/q/staged/publish"
        await client.refused(409, "batch-too-old", "POST", path, old)
        lost = {"producer": "p", "batch": 2, "attempts": [[0, 0]]}
        await client.refused(404, "not-staged", "POST", path, lost)


@run
async def test_named_readers_and_replay() -> None:
    async with serving() as client:
        await client.do("PUT", "/queues/q", {"retention_ms": 600_000})
        await client.send("q", "1", "2", "3")
        await client.receive("q", delete=True)
        made = await client.do("PUT", "/entities/q/readers/nightly", {})
        assert (made["positions"], made["lag"]) == ([1], [3])
        move = {"positions": [3], "incarnation": made["incarnation"]}
        await client.on("q", "readers/nightly/move", **move)
        (listed,) = (await client.do("GET", "/entities/q/readers"))["readers"]
        assert listed["positions"] == [3]
        wrong = move | {"incarnation": 99}
        path = "/entities/q/readers/nightly/move"
        await client.refused(409, "entity-replaced", "POST", path, wrong)
        await client.do("DELETE", "/entities/q/readers/nightly")
        assert (await client.do("GET", "/entities/q/readers"))["readers"] == []
        assert await client.on("q", "log/replay", start=2, where={"body_contains": "3"}) == {
            "count": 1
        }
        assert bodies(await client.receive("q")) == ["3"]
        positions = await client.do("GET", "/entities/q/log?log=messages")
        assert (positions["earliest"], positions["latest"]) == ([1], [5])


# Test mode


@run
@pytest.mark.promise("X10")
async def test_time_passes_when_told_and_everything_can_go() -> None:
    bus = await Bus.ephemeral()
    async with serving(bus=bus) as client:
        await client.do("PUT", "/queues/q", {"lock_duration_ms": 60_000})
        before = (await client.do("POST", "/test/clock", {"advance_ms": 0}))["now_ms"]
        due = before + 3_600_000
        await client.on("q", "schedule", message={"body": "in an hour"}, due_ms=due)
        waiting = asyncio.create_task(client.receive("q", wait_ms=20_000))
        await until_waited_for(bus, "q")
        after = (await client.do("POST", "/test/clock", {"advance_ms": 3_600_000}))["now_ms"]
        assert 3_600_000 <= after - before < 3_600_000 + 1_000 * PATIENCE_S
        # Who waited has waited long enough, too; what was due is there for the next to ask.
        assert await waiting == []
        assert bodies(await client.receive("q")) == ["in an hour"]
        await client.do("POST", "/test/clock", {"advance_ms": 61_000})
        (again,) = await client.receive("q")
        assert again["delivery_count"] == 1
        await client.do("PUT", "/queues/p", {"forward_to": "q"})
        await client.do("PUT", "/topics/t", {})
        await client.do("PUT", f"/subscriptions/{SUBSCRIPTION}", {})
        await client.do("POST", "/test/reset")
        assert await client.do("GET", "/queues") == {"names": []}
        assert await client.do("GET", "/topics") == {"names": []}
        await client.do("PUT", "/queues/q", {})
        assert await client.send("q", "new") == [{"sequence_number": 1}]


@run
async def test_the_clock_of_a_real_bus_is_not_moved(tmp_path: Path) -> None:
    async with serving(bus=await Bus.open(tmp_path)) as client:
        body = {"advance_ms": 1}
        await client.refused(409, "invalid-operation", "POST", "/test/clock", body)
