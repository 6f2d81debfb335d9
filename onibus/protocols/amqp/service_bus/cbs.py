"""$cbs: clients put SAS tokens here, each for a resource, and renew them before they expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.core.errors import InvalidArgument
from onibus.protocols.amqp.service_bus.requests import AnsweringNode, Request

if TYPE_CHECKING:
    from onibus.protocols.amqp.service_bus.client import Client

PUT_TOKEN = "put-token"
_ACCEPTED = 202


class TokenNode(AnsweringNode):
    """Takes tokens."""

    status_name = "status-code"
    description_name = "status-description"
    condition_name = "error-condition"

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def answer(self, request: Request) -> None:
        name = request.properties.get("name")
        if request.operation != PUT_TOKEN or not isinstance(name, str):
            raise InvalidArgument("$cbs requires operation put-token and a resource name")
        # Clients name different types; what a token is shows in itself.
        if not isinstance(request.body, str):
            raise InvalidArgument("a token must be a string")
        self._client.put_token(name, str(request.body))
        self.say(request, _ACCEPTED, "Accepted")
