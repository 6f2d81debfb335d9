"""Connection strings, tokens that are made anew in time, and TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from onibus import Bus
from onibus.client import AsyncClient, Retry, Target, Unreachable
from onibus.client.connecting import TOKEN_SECONDS, TOKEN_SECONDS_LEFT, Tokens
from onibus.core.errors import InvalidArgument
from onibus.security.keys import DEVELOPMENT, DEVELOPMENT_KEY, ROOT_NAME, Keyring
from onibus.server import tls
from onibus.server.connection_strings import connection_string
from onibus.server.server import Server
from tests.bus_helpers import run


def test_what_a_server_writes_a_client_reads() -> None:
    for host, safe in (("localhost", True), ("::1", False)):
        target = Target.parse(connection_string(DEVELOPMENT, host, 5301, tls=safe))
        name = f"[{host}]" if ":" in host else host
        assert target.url == f"{'https' if safe else 'http'}://{name}:5301"
        assert (target.key_name, target.key) == (ROOT_NAME, DEVELOPMENT_KEY)


@pytest.mark.promise("X11")
def test_the_emulators_string_means_plain_text_on_5300() -> None:
    target = Target.parse(
        "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k=;"
        "UseDevelopmentEmulator=true;"
    )
    assert target == Target("http://localhost:5300", "n", "k=")
    assert Target.parse("endpoint=sb://h/;EntityPath=q").url == "https://h:5300"
    assert Target.parse("http://h:1/") == Target("http://h:1")


def test_keys_are_not_shown() -> None:
    assert "hidden" not in repr(Target("http://h", "n", "hidden"))
    with pytest.raises(InvalidArgument) as told:
        Target.parse("Endpoint=sb://h;hidden")
    assert "hidden" not in str(told.value)


def test_tokens_are_made_anew_before_they_expire() -> None:
    now = [1_800_000_000.0]
    tokens = Tokens(Target("http://h:5300", ROOT_NAME, DEVELOPMENT_KEY), lambda: now[0])
    keys = Keyring(development=True)
    first = tokens.text()
    assert keys.check(first, now[0]).name == ROOT_NAME
    now[0] += TOKEN_SECONDS - TOKEN_SECONDS_LEFT
    assert tokens.text() == first
    now[0] += 1
    assert tokens.text() != first
    now[0] += TOKEN_SECONDS_LEFT
    assert keys.check(tokens.text(), now[0]).until > now[0]


@run
async def test_tls_with_a_certificate_to_trust(tmp_path: Path) -> None:
    certificate, key = tls.self_made(tmp_path, "127.0.0.1")
    quick = Retry(attempts=1)
    async with (
        Bus.ephemeral() as bus,
        Server(
            bus, Keyring(development=True), http_port=0, tls=tls.context(certificate, key)
        ) as server,
    ):
        text = connection_string(DEVELOPMENT, "localhost", server.http_port, tls=True)
        async with AsyncClient.connect(text, verify=str(certificate)) as client:
            await client.create_queue("q")
            assert await client.queues() == ["q"]
        async with AsyncClient.connect(text, retry=quick) as stranger:
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.queues()
