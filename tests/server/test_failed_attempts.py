"""Failed authentication is limited by address on every listener."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from onibus import Bus
from onibus.protocols.amqp.frames import SASL_HEADER
from onibus.protocols.http.limits import Limits
from onibus.security.keys import ROOT_NAME, AccessKey, Keyring
from onibus.server.server import Server
from tests.amqp.raw_client import RawClient
from tests.bus_helpers import PATIENCE_S, run
from tests.server.server_helpers import SECRET, signed, token
from tests.server.strangers import amqp_open
from tests.sqs.signing import json_request

FAILURES_MAX = 5
#: No failure expires during a test.
LIMITS = Limits(failures_max=FAILURES_MAX, failures_per_second=1e-9)
ADMIN = "/$Resources/queues?api-version=2017-04"


class Guesser:
    """A client that uses a new connection for each attempt."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = f"http://127.0.0.1:{server.http_port}"
        self.sqs = f"http://127.0.0.1:{server.sqs_port}"

    async def native(self, key: str, path: str = "/v1/queues") -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=self.http, trust_env=False, timeout=PATIENCE_S
        ) as client:
            return await client.get(path, headers=signed(key=key))

    async def over_sqs(self, secret: str, name: str = ROOT_NAME) -> httpx.Response:
        request = json_request(self.sqs, "ListQueues", b"{}", key=name, secret=secret)
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
            headers = dict(request.headers.items())
            return await client.post(request.url, content=b"{}", headers=headers)

    async def by_sasl(self, secret: str) -> int:
        """Return the SASL outcome."""

        def ask() -> int:
            assert self.server.amqp_port is not None
            with RawClient(self.server.amqp_port) as raw:
                raw.send(amqp_open(secret=secret))
                raw.expect_header(SASL_HEADER)
                code: int = raw.expect(0x44)[1][0]
                return code

        return await asyncio.to_thread(ask)

    async def by_token(self, shown: str) -> int:
        """Return the status of a put-token request."""

        def ask() -> int:
            assert self.server.amqp_port is not None
            with RawClient(self.server.amqp_port) as raw:
                raw.open()
                raw.begin()
                return raw.put_token("sb://localhost/", shown)

        return await asyncio.to_thread(ask)


@asynccontextmanager
async def serving() -> AsyncIterator[Guesser]:
    async with Bus.ephemeral() as bus:
        keys = Keyring([AccessKey(name=ROOT_NAME, primary=SECRET)])
        how: dict[str, Any] = {"http_port": 0, "amqp_port": 0, "sqs_port": 0}
        async with Server(bus, keys, limits=LIMITS, **how) as server:
            yield Guesser(server)


@run
async def test_wrong_tokens_of_the_native_api_are_limited() -> None:
    async with serving() as guesser:
        for _ in range(FAILURES_MAX):
            assert (await guesser.native("wrong")).status_code == 401
        told = await guesser.native("wrong")
        assert (told.status_code, told.headers["retry-after"]) == (429, "1")
        problem = json.loads(told.content)
        assert (problem["type"], problem["retryable"]) == ("too-many-failures", True)
        # New tokens from that address are rejected unchecked. Calls that need none succeed.
        assert (await guesser.native(SECRET)).status_code == 429
        async with httpx.AsyncClient(
            base_url=guesser.http, trust_env=False, timeout=PATIENCE_S
        ) as client:
            assert (await client.get("/livez")).status_code == 200


@run
async def test_who_was_let_in_before_is_not_kept_out() -> None:
    async with (
        serving() as guesser,
        httpx.AsyncClient(base_url=guesser.http, timeout=PATIENCE_S) as known,
    ):
        first, second = signed(), signed(seconds=500)
        assert (await known.get("/v1/queues", headers=first)).status_code == 200
        for _ in range(FAILURES_MAX):
            await guesser.native("wrong")
        assert (await guesser.native("wrong")).status_code == 429
        # The known connection continues, even with a new token.
        assert (await known.get("/v1/queues", headers=second)).status_code == 200
        # A token that was accepted before works on any connection.
        async with httpx.AsyncClient(
            base_url=guesser.http, trust_env=False, timeout=PATIENCE_S
        ) as client:
            assert (await client.get("/v1/queues", headers=first)).status_code == 200


@run
async def test_who_has_a_key_does_not_guess_others_by_it() -> None:
    async with (
        serving() as guesser,
        httpx.AsyncClient(base_url=guesser.http, timeout=PATIENCE_S) as known,
    ):
        assert (await known.get("/v1/queues", headers=signed())).status_code == 200
        statuses = [
            (await known.get("/v1/queues", headers=signed(key=f"wrong {number}"))).status_code
            for number in range(FAILURES_MAX + 2)
        ]
        assert statuses == [401] * FAILURES_MAX + [429] * 2


@run
async def test_management_sqs_and_amqp_share_the_limit() -> None:
    async with serving() as guesser:
        assert (await guesser.native("wrong", ADMIN)).status_code == 401
        assert "SignatureDoesNotMatch" in (await guesser.over_sqs("wrong")).text
        assert "InvalidClientTokenId" in (await guesser.over_sqs("wrong", "nobody")).text
        assert await guesser.by_sasl("wrong") == 1
        assert await guesser.by_token(token(key="wrong")) == 401
        assert (await guesser.native("wrong", ADMIN)).status_code == 429
        throttled = await guesser.over_sqs("wrong")
        assert (throttled.status_code, "RequestThrottled" in throttled.text) == (403, True)
        assert await guesser.by_sasl("wrong") == 4
        assert await guesser.by_token(token(key="wrong")) == 503
        assert guesser.server.peers.attempts.refused == 4


@run
async def test_good_credentials_never_count() -> None:
    async with serving() as guesser:
        for number in range(FAILURES_MAX + 5):
            assert (await guesser.native(SECRET)).status_code == 200
            assert (await guesser.over_sqs(SECRET)).status_code == 200
            assert await guesser.by_sasl(SECRET) == 0
            assert await guesser.by_token(token(seconds=600 + number)) == 202
        # Missing credentials and missing rights do not count either.
        async with httpx.AsyncClient(
            base_url=guesser.http, trust_env=False, timeout=PATIENCE_S
        ) as client:
            for _ in range(FAILURES_MAX + 5):
                assert (await client.get("/v1/queues")).status_code == 401
                refused = await client.get("/v1/queues", headers=signed("sb://localhost/q"))
                assert refused.status_code == 403
        assert (await guesser.native("wrong")).status_code == 401
