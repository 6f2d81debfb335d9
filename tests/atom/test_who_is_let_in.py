"""Keys of the configuration, tokens for less than everything, and a server without keys."""

from __future__ import annotations

from urllib.parse import quote

import httpx

from onibus import Bus
from onibus.protocols.atom.xml import INSTANCE
from onibus.security.keys import AccessKey
from onibus.security.rights import ALL
from onibus.server.server import Server
from tests.atom.helpers import body
from tests.bus_helpers import PATIENCE_S, run
from tests.server.server_helpers import ROOT, SECRET, serving, signed

VERSION = {"api-version": "2021-05"}
CONFIGURED = AccessKey(name="boss", primary="p" * 44, secondary="s" * 44, rights=ALL, entity="q")


def described(answer: httpx.Response) -> str:
    """Return what stands in the description of an answer."""
    return answer.text.partition(f'{INSTANCE}">')[2].partition("</QueueDescription>")[0]


@run
async def test_keys_of_the_configuration_stay_as_they_are_and_are_not_told() -> None:
    async with serving(ROOT, CONFIGURED) as (server, client):
        await server.bus.create_queue("q")
        client.params, client.headers = httpx.QueryParams(VERSION), httpx.Headers(signed())
        told = await client.get("/q")
        assert "<KeyName>boss</KeyName><PrimaryKey/><SecondaryKey/>" in told.text
        assert "pppp" not in told.text
        again = await client.put("/q", content=body(described(told)), headers={"if-match": "*"})
        assert again.status_code == 200, again.text
        without = body("<AuthorizationRules/>")
        refused = await client.put("/q", content=without, headers={"if-match": "*"})
        assert (refused.status_code, "in the configuration" in refused.text) == (400, True)
        mine = signed("sb://localhost/q", "boss", "p" * 44)
        assert (await client.get("/q", headers=mine)).status_code == 200


@run
async def test_a_token_for_one_address_is_good_for_that_only() -> None:
    async with serving(ROOT) as (server, client):
        await server.bus.create_topic("t")
        await server.bus.create_subscription("t", "s")
        await server.bus.create_queue("target")
        client.params = httpx.QueryParams(VERSION)
        path = f"/t/subscriptions/s/rules/{quote('my rule')}"
        mine = signed(f"https://localhost{path}?api-version=2021-05")
        made = await client.put(path, content=body("", "RuleDescription"), headers=mine)
        assert made.status_code == 201, made.text
        assert (await client.get("/t/subscriptions/s/rules/other", headers=mine)).status_code == 401
        # To forward, its owner has to own the target, or to show that he does.
        forwarding = body("<ForwardTo>sb://localhost/target</ForwardTo>")
        mine = signed("https://localhost/source")
        refused = await client.put("/source", content=forwarding, headers=mine)
        assert (refused.status_code, "is only for source" in refused.text) == (401, True)
        both = mine | {"ServiceBusSupplementaryAuthorization": signed()["authorization"]}
        assert (await client.put("/source", content=forwarding, headers=both)).status_code == 201
        assert SECRET not in refused.text


@run
async def test_a_server_without_keys_takes_none_and_no_web_pages() -> None:
    async with Server(await Bus.ephemeral(), None, http_port=0) as server:
        address = f"http://localhost:{server.http_port}"
        async with httpx.AsyncClient(
            base_url=address, params=VERSION, trust_env=False, timeout=PATIENCE_S
        ) as client:
            assert (await client.put("/q", content=body())).status_code == 201
            page = await client.get("/q", headers={"origin": "http://elsewhere.example"})
            assert (page.status_code, "web pages of other sites" in page.text) == (401, True)
            key = "<AuthorizationRule><KeyName>k</KeyName><Rights><AccessRights>Send</AccessRights>"
            rules = f"<AuthorizationRules>{key}</Rights></AuthorizationRule></AuthorizationRules>"
            refused = await client.put("/other", content=body(rules))
            assert (refused.status_code, "has no keys" in refused.text) == (400, True)
