"""Carries requests to a server over HTTP, on connections that are kept."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import httpx

from onibus.client.asking import Answer, AnswerLost, Ask, NotSent
from onibus.core.errors import BusClosed, InvalidArgument

#: Seconds: to connect, and to be answered beyond what the server was asked to wait.
CONNECT_S, ANSWER_S = 5.0, 30.0


class HttpTransport:
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
            # A certificate to trust, such as the one a server made itself.
            verify = ssl.create_default_context(cafile=verify)
        self._credentials = credentials
        self._http = httpx.Client(
            base_url=url,
            verify=verify,
            limits=httpx.Limits(max_connections=connections, keepalive_expiry=60),
            # Nothing is taken from the environment: no proxy, no other credentials.
            trust_env=False,
        )

    def ask(self, ask: Ask) -> Answer:
        """Send a request and wait for its answer."""
        headers = {"accept": ask.accept}
        if ask.body:
            headers["content-type"] = ask.content_type
        credentials = self._credentials()
        if credentials is not None:
            headers["authorization"] = credentials
        try:
            response = self._http.request(
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
            raise InvalidArgument(f"that is no address of a server: {error}") from None
        except httpx.TransportError as error:
            raise AnswerLost(str(error) or type(error).__name__) from error
        except RuntimeError:
            if self._http.is_closed:
                raise BusClosed("the client was closed") from None
            raise
        return Answer(
            response.status_code, response.content, response.headers.get("content-type", "")
        )

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()
