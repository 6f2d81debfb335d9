"""Transport to a server over HTTP, on persistent connections."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import httpx

from onibus.client.asking import AnswerLost, Ask, NotSent, ServerResponse
from onibus.core.errors import BusClosed, InvalidArgument

#: Seconds to connect, and to wait for a response beyond the wait that the request names.
CONNECT_S, ANSWER_S = 5.0, 30.0


class AsyncHttpTransport:
    """Connections to one server."""

    def __init__(
        self,
        url: str,
        credentials: Callable[[], str | None],
        *,
        verify: ssl.SSLContext | str | bool = True,
        connections: int = 100,
    ) -> None:
        if isinstance(verify, str):
            # A certificate to trust, such as one that a server generated.
            verify = ssl.create_default_context(cafile=verify)
        self._credentials = credentials
        self._http = httpx.AsyncClient(
            base_url=url,
            verify=verify,
            limits=httpx.Limits(max_connections=connections, keepalive_expiry=60),
            # Use nothing from the environment: no proxy, no other credentials.
            trust_env=False,
        )

    async def ask(self, ask: Ask) -> ServerResponse:
        """Send a request and return its response."""
        headers = {"accept": ask.accept}
        if ask.body:
            headers["content-type"] = ask.content_type
        credentials = self._credentials()
        if credentials is not None:
            headers["authorization"] = credentials
        try:
            response = await self._http.request(
                ask.method,
                ask.path,
                params=dict(ask.query),
                content=ask.body,
                headers=headers,
                timeout=httpx.Timeout(ANSWER_S + ask.wait_ms / 1000, connect=CONNECT_S),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotSent(str(error) or type(error).__name__) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InvalidArgument(f"not a server address: {error}") from None
        except httpx.TransportError as error:
            raise AnswerLost(str(error) or type(error).__name__) from error
        except RuntimeError:
            if self._http.is_closed:
                raise BusClosed("the client is closed") from None
            raise
        return ServerResponse(
            response.status_code, response.content, response.headers.get("content-type", "")
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
