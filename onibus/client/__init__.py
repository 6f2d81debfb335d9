"""Clients of a server: `Client` for plain programs, `AsyncClient` for asyncio, with one shape.

    with Client.connect("Endpoint=sb://localhost;SharedAccessKeyName=…;…") as client:
        client.create_queue("orders", requires_duplicate_detection=True)
        client.send("orders", Message(body=b"three apples"))
        with client.receiver("orders") as receiver:
            for message in receiver:
                receiver.complete(message)

`AsyncClient.on(bus)` is the same on a Bus of this very process. `aio` is written by hand, and
`blocking` is made of it by tools/blocking.py, so neither can lack what the other has.
"""

from onibus.client.aio.client import AsyncClient
from onibus.client.blocking.client import Client
from onibus.client.connecting import Target
from onibus.client.problems import Unreachable
from onibus.client.retrying import Retry

__all__ = ["AsyncClient", "Client", "Retry", "Target", "Unreachable"]
