"""Every field that a signature covers, altered once: refused; in the header, and presigned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from botocore.awsrequest import AWSRequest

from tests.server.processes import OWN_KEY_ONLY, PATIENCE_S, Served, served
from tests.sqs.clients import client_of
from tests.sqs.signing import VERSION, presigned, query_request, send, signed

#: What a signature that is wrong, or cannot be one, is answered with.
REFUSED = {400, 403}
BODY = json.dumps({"QueueName": "never-made"})


def other(text: str) -> str:
    """Return a text with another last character."""
    return text[:-1] + ("0" if text[-1] != "0" else "1")


def whole(endpoint: str) -> AWSRequest:
    """Return a request with all that SDKs sign, and more."""
    headers = {
        "X-Amz-Target": "AmazonSQS.CreateQueue",
        "Content-Type": "application/x-amz-json-1.0",
        "x-amzn-query-mode": "true",
        "amz-sdk-invocation-id": "0f0f0f0f",
        "amz-sdk-request": "attempt=1",
        "x-amz-user-agent": "aws-sdk-js/3",
    }
    return signed(endpoint + "/", BODY, headers)


def alterations(request: AWSRequest) -> dict[str, dict[str, Any]]:
    """Return all that can be altered, by name: what to send instead."""
    sent = {name.lower(): value for name, value in request.headers.items()}
    header = sent["authorization"]
    names = header.partition("SignedHeaders=")[2].partition(",")[0]
    credential = header.partition("Credential=")[2].partition(",")[0]
    changes: dict[str, dict[str, Any]] = {
        "method": {"method": "PUT"},
        "path": {"url": str(request.url) + "000000000000/other"},
        "query": {"url": str(request.url) + "?Action=ListQueues"},
        "body": {"content": BODY.replace("never-made", "never-Made")},
        "no body": {"content": b""},
    }
    for name in names.split(";"):
        if name != "host":
            changes[f"{name} altered"] = {"headers": sent | {name: other(sent[name])}}
            left = {one: value for one, value in sent.items() if one != name}
            changes[f"{name} taken out"] = {"headers": left}
        fewer = ";".join(one for one in names.split(";") if one != name)
        unsigned = header.replace(names, fewer)
        changes[f"{name} not signed"] = {"headers": sent | {"authorization": unsigned}}
    changes["host altered"] = {"headers": sent | {"host": "elsewhere.example"}}
    for at, part in enumerate(credential.split("/")):
        parts = credential.split("/")
        parts[at] = other(part)
        altered = header.replace(credential, "/".join(parts))
        changes[f"credential {at}"] = {"headers": sent | {"authorization": altered}}
    for name, altered in {
        "signature": other(header),
        "signature in capitals": header[:-64] + header[-64:].upper(),
        "algorithm": header.replace("SHA256", "SHA512"),
    }.items():
        changes[name] = {"headers": sent | {"authorization": altered}}
    return changes


def test_every_signed_field_of_a_header(server: Served) -> None:
    endpoint = server.ready["sqs"]
    request = whole(endpoint)
    changes = alterations(request)
    assert len(changes) > 30
    for name, changed in changes.items():
        response = send(request, **changed)
        assert response.status_code in REFUSED, name
        if name not in ("x-amz-target taken out", "signature in capitals"):
            assert "QueueUrl" not in response.text, name
    assert "QueueUrls" not in client_of(endpoint).list_queues(QueueNamePrefix="never")
    assert send(request).status_code == 200, "as it was signed it is good"
    client_of(endpoint).delete_queue(QueueUrl=f"{endpoint}/000000000000/never-made")


def test_every_parameter_of_a_presigned_request(server: Served) -> None:
    endpoint = server.ready["sqs"]
    client_of(endpoint).create_queue(QueueName="altered-queue")
    given = {"Action": "GetQueueUrl", "Version": VERSION, "QueueName": "altered-queue"}
    good = presigned(f"{endpoint}/?{urlencode(given)}")
    base, _, text = good.partition("?")
    pairs = parse_qsl(text, keep_blank_values=True)
    assert len(pairs) == 9

    def refused(url: str, what: str, method: str = "GET", **more: Any) -> None:
        response = httpx.request(method, url, trust_env=False, timeout=PATIENCE_S, **more)
        assert response.status_code in REFUSED, what
        assert "QueueUrl" not in response.text, what

    for at, (name, value) in enumerate(pairs):
        altered = [*pairs[:at], (name, other(value)), *pairs[at + 1 :]]
        refused(f"{base}?{urlencode(altered)}", f"{name} altered")
        refused(f"{base}?{urlencode([*pairs[:at], *pairs[at + 1 :]])}", f"{name} taken out")
        refused(f"{good}&{urlencode({name: value})}", f"{name} twice")
    refused(f"{good}&Attribute.1.Name=DelaySeconds&Attribute.1.Value=9", "one more parameter")
    refused(good.replace("/?", "/000000000000/other?"), "another path")
    refused(good, "another method", "POST")
    refused(good, "a body", "POST", content=b"QueueName=other")
    refused(good, "another host", headers={"host": "elsewhere.example"})
    refused(good, "a target", headers={"x-amz-target": "AmazonSQS.ListQueues"})
    answer = httpx.get(good, trust_env=False, timeout=PATIENCE_S)
    assert (answer.status_code, "QueueUrl" in answer.text) == (200, True), "as it was signed"
    client_of(endpoint).delete_queue(QueueUrl=f"{endpoint}/000000000000/altered-queue")


@pytest.mark.parametrize(
    "name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"]
)
def test_a_signing_parameter_that_is_there_twice(server: Served, name: str) -> None:
    # The signature does not sign itself: that it is there once more shows in no canonical request.
    endpoint = server.ready["sqs"]
    base, _, text = presigned(f"{endpoint}/?Action=ListQueues&Version={VERSION}").partition("?")
    pairs = parse_qsl(text)
    name = f"X-Amz-{name}"
    spelled = f"X-Amz-%{ord(name[6]):x}{name[7:]}"
    assert httpx.get(f"{base}?{text}", trust_env=False, timeout=PATIENCE_S).status_code == 200
    for value in (dict(pairs)[name], "other", ""):
        for more in (urlencode({name: value}), f"{spelled}={value}"):
            for url in (f"{base}?{text}&{more}", f"{base}?{more}&{text}"):
                response = httpx.get(url, trust_env=False, timeout=PATIENCE_S)
                assert response.status_code == 400, url
                assert "<Code>IncompleteSignature</Code>" in response.text
                assert f"The query has '{name}' twice." in response.text.replace("&#39;", "'")


def test_every_parameter_of_a_form(server: Served) -> None:
    endpoint = server.ready["sqs"]
    request = query_request(endpoint, "CreateQueue", QueueName="never-made-in-a-form")
    pairs = parse_qsl(str(request.data))
    for at, (name, value) in enumerate(pairs):
        altered = [*pairs[:at], (name, other(value)), *pairs[at + 1 :]]
        assert send(request, content=urlencode(altered)).status_code == 403, name
        assert send(request, content=urlencode(pairs[:at])).status_code == 403, name
    assert "QueueUrls" not in client_of(endpoint).list_queues(QueueNamePrefix="never")


@pytest.mark.parametrize(
    ("where", "flags"),
    [
        ("off loopback", ("--host", "0.0.0.0", "--allow-plain-text")),
        ("without development", ()),
    ],
)
def test_the_development_pair_is_for_development_only(
    tmp_path: Path, where: str, flags: tuple[str, ...]
) -> None:
    options = ("--data", str(tmp_path / "data"), "--log-level", "error", *flags)
    with served(*options, **OWN_KEY_ONLY) as one:
        endpoint = "http://127.0.0.1:" + one.ready["sqs"].rpartition(":")[2]
        response = send(query_request(endpoint, "ListQueues"))
        assert response.status_code == 403, where
        assert "<Code>InvalidClientTokenId</Code>" in response.text
        text = Path(one.ready["connection_file"]).read_text()
        own = text.partition("SharedAccessKey=")[2].split(";")[0].strip()
        assert client_of(endpoint, "RootManageSharedAccessKey", own).list_queues()
