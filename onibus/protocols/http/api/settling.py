"""Settling over HTTP, by lock tokens."""

from __future__ import annotations

from typing import Any

from onibus.api.delivery import Complete, DeadLetter, GiveBack, Held, LockedUntil
from onibus.api.messages import rich_values, token_of
from onibus.broker import settling
from onibus.core.path.settle import abandon as abandon_held
from onibus.core.path.settle import defer as defer_held
from onibus.core.path.settle import reject, renew
from onibus.protocols.http.route import Call, Route
from onibus.security.rights import Right


def complete(call: Call) -> None:
    """Complete messages; if one lock is lost, complete none."""
    tokens = [token_of(one) for one in call.decode(Complete).tokens]
    call.ask(
        lambda reply: settling.complete_all(call.bus.broker, call.entity, tokens, reply), _nothing
    )


def abandon(call: Call) -> None:
    given: GiveBack = call.decode(GiveBack)
    token, changed = token_of(given.token), _changed(given.properties)
    _settle(
        call,
        token,
        lambda subscription, now, out: abandon_held(
            subscription, token, now, out, given.delay_ms, changed
        ),
    )


def defer(call: Call) -> None:
    given: GiveBack = call.decode(GiveBack)
    token, changed = token_of(given.token), _changed(given.properties)
    _settle(
        call,
        token,
        lambda subscription, now, out: defer_held(
            subscription, token, now, out, given.delay_ms, changed
        ),
    )


def dead_letter(call: Call) -> None:
    given: DeadLetter = call.decode(DeadLetter)
    token, changed = token_of(given.token), _changed(given.properties)
    _settle(
        call,
        token,
        lambda subscription, now, out: reject(
            subscription, token, out, given.reason, given.description, changed, now
        ),
    )


def renew_lock(call: Call) -> None:
    token = token_of(call.decode(Held).token)
    _settle(
        call,
        token,
        lambda subscription, now, out: renew(subscription, token, now, out),
        LockedUntil,
    )


def _nothing(result: object) -> None:
    return None


def _changed(properties: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if properties is None else rich_values(properties)


def _settle(call: Call, token: bytes, act: Any, make: Any = _nothing) -> None:
    call.ask(
        lambda reply: settling.settle_one(call.bus.broker, call.entity, token, act, reply), make
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
