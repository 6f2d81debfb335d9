"""Requests signed by botocore's own signer, whose parts can then be altered."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import httpx
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.server.processes import PATIENCE_S

VERSION = "2012-11-05"


def signed(
    url: str,
    body: bytes | str = b"",
    headers: dict[str, str] | None = None,
    *,
    method: str = "POST",
    key: str = "test",
    secret: str = "test",
    token: str | None = None,
    region: str = "eu-north-1",
    service: str = "sqs",
) -> AWSRequest:
    """Return a request with its signature in the headers."""
    request = AWSRequest(method, url, data=body, headers=headers or {})
    SigV4Auth(Credentials(key, secret, token), service, region).add_auth(request)
    return request


def presigned(url: str, seconds: int = 60, secret: str = "test", **how: Any) -> str:
    """Return a URL with its signature in the query."""
    request = AWSRequest("GET", url, data=b"", headers={})
    credentials = Credentials("test", secret, how.pop("token", None))
    SigV4QueryAuth(credentials, "sqs", "us-east-1", expires=seconds).add_auth(request)
    return str(request.url)


def json_request(endpoint: str, action: str, body: bytes | str, **how: Any) -> AWSRequest:
    """Return a signed request of AWS JSON."""
    headers = {
        "X-Amz-Target": f"AmazonSQS.{action}",
        "Content-Type": "application/x-amz-json-1.0",
        "x-amzn-query-mode": "true",
    }
    return signed(endpoint + "/", body, headers, **how)


def query_request(endpoint: str, action: str, path: str = "/", **given: Any) -> AWSRequest:
    """Return a signed request of the Query protocol."""
    body = urlencode({"Action": action, "Version": VERSION, **given})
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    return signed(endpoint + path, body, headers)


def send(request: AWSRequest, **changed: Any) -> httpx.Response:
    """Send a request as it was signed, but for what is changed."""
    whole = {
        "method": request.method,
        "url": str(request.url),
        "content": request.data,
        "headers": dict(request.headers.items()),
        **changed,
    }
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
        return client.request(**whole)
