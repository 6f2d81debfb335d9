"""Settling over HTTP, by lock tokens."""

from __future__ import annotations

from typing import Any, Literal

from onibus.api.delivery import Complete, DeadLetter, GiveBack, Held, LockedUntil
from onibus.api.messages import rich_values, token_of
from onibus.core.commands import COMPLETE, Settlement
from onibus.gateway import settling
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


def complete(call: Call) -> None:
    """Complete messages; if one lock is lost, complete none."""
    _settle(call, [token_of(one) for one in call.decode(Complete).tokens], COMPLETE)


def abandon(call: Call) -> None:
    _give_back(call, "abandon")


def defer(call: Call) -> None:
    _give_back(call, "defer")


def _give_back(call: Call, verb: Literal["abandon", "defer"]) -> None:
    given: GiveBack = call.decode(GiveBack)
    settlement = Settlement(verb, given.delay_ms, properties=_changed(given.properties))
    _settle(call, [token_of(given.token)], settlement)


def dead_letter(call: Call) -> None:
    given: DeadLetter = call.decode(DeadLetter)
    settlement = Settlement(
        "dead-letter",
        reason=given.reason,
        description=given.description,
        properties=_changed(given.properties),
    )
    _settle(call, [token_of(given.token)], settlement)


def renew_lock(call: Call) -> None:
    token = token_of(call.decode(Held).token)
    call.ask(
        lambda reply: settling.renew_one(call.bus.broker, call.entity, token, reply), LockedUntil
    )


def _nothing(result: object) -> None:
    return None


def _changed(properties: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if properties is None else rich_values(properties)


def _settle(call: Call, tokens: list[bytes], settlement: Settlement) -> None:
    call.ask(
        lambda reply: settling.settle_all(call.bus.broker, call.entity, tokens, settlement, reply),
        _nothing,
    )


def _route(path: str, summary: str, fast: Any, takes: Any, gives: Any = None) -> Route:
    return Route(
        method="POST",
        path=f"/v1/entities/{{entity}}{path}",
        summary=summary,
        right=Right.LISTEN,
        fast=fast,
        takes=takes,
        gives=gives,
        tag="settling",
    )


ROUTES = [
    _route("/complete", "Complete locked messages atomically.", complete, Complete),
    _route("/abandon", "Abandon a message, optionally with a delay.", abandon, GiveBack),
    _route("/defer", "Defer a message; with a delay it becomes active again.", defer, GiveBack),
    _route("/dead-letter", "Dead-letter a message.", dead_letter, DeadLetter),
    _route("/renew", "Renew the lock of a message.", renew_lock, Held, LockedUntil),
]
