"""Signatures: good ones are let in, and a request of which anything signed was altered is not."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from botocore import auth

from tests.server.processes import PATIENCE_S, Served
from tests.sqs.clients import client_of, new_name
from tests.sqs.signing import VERSION, json_request, presigned, query_request, send, signed


@pytest.fixture
def endpoint(server: Served) -> str:
    found: str = server.ready["sqs"]
    return found


def code_of(response: httpx.Response) -> str:
    return response.headers.get("x-amzn-query-error", "").partition(";")[0]


def test_good_signatures_of_any_region(endpoint: str) -> None:
    for region in ("us-east-1", "ru-central1", "anywhere"):
        response = send(json_request(endpoint, "ListQueues", "{}", region=region))
        assert response.status_code == 200
    name = new_name()
    made = client_of(endpoint, region_name="mars-1").create_queue(QueueName=name)
    told = client_of(endpoint, region_name="mars-1").get_queue_attributes(
        QueueUrl=made["QueueUrl"], AttributeNames=["QueueArn"]
    )
    assert told["Attributes"]["QueueArn"] == f"arn:aws:sqs:mars-1:000000000000:{name}"


BODY = json.dumps({"QueueName": "altered", "Attributes": {"DelaySeconds": "1"}})


@pytest.mark.parametrize(
    "name",
    ["x-amz-target", "x-amz-date", "content-type", "x-amzn-query-mode", "host", "x-extra"],
)
def test_a_signed_header_that_was_altered_is_refused(endpoint: str, name: str) -> None:
    headers = {"X-Amz-Target": "AmazonSQS.CreateQueue", "Content-Type": "x", "X-Extra": "one two"}
    headers["x-amzn-query-mode"] = "true"
    request = signed(endpoint + "/", BODY, headers)
    sent = {key.lower(): value for key, value in request.headers.items()}
    if name == "x-amz-target":
        sent[name] = "AmazonSQS.ListQueues"
    elif name == "x-amz-date":
        sent[name] = sent[name][:-2] + ("0Z" if sent[name][-2] != "0" else "1Z")
    elif name == "host":
        sent[name] = "localhost:1"
    else:
        sent[name] = sent[name] + "x"
    response = send(request, headers=sent)
    assert response.status_code == 403
    assert code_of(response) == "SignatureDoesNotMatch"
    del sent[name]
    if name != "host":
        assert send(request, headers=sent).status_code in (400, 403), "or taken out"
    assert send(signed(endpoint + "/", BODY, headers)).status_code == 200


@pytest.mark.parametrize("part", ["method", "path", "query", "body", "signature", "credential"])
def test_other_parts_that_were_altered_are_refused(endpoint: str, part: str) -> None:
    request = json_request(endpoint, "GetQueueUrl", BODY)
    header = request.headers["Authorization"]
    sent = dict(request.headers.items())
    changes: dict[str, dict[str, Any]] = {
        "method": {"method": "PUT"},
        "path": {"url": endpoint + "/x"},
        "query": {"url": endpoint + "/?x=1"},
        "body": {"content": BODY.replace("altered", "Altered")},
        "signature": {
            "headers": sent | {"Authorization": header[:-1] + ("0" if header[-1] != "0" else "1")}
        },
        "credential": {
            "headers": sent | {"Authorization": header.replace("/eu-north-1/", "/us-east-1/")}
        },
    }
    response = send(request, **changes[part])
    assert response.status_code == 403
    assert code_of(response) == "SignatureDoesNotMatch"


def test_a_header_taken_out_of_what_is_signed_is_refused(endpoint: str) -> None:
    request = json_request(endpoint, "ListQueues", "{}")
    for name in ("host", "x-amz-target"):
        header = request.headers["Authorization"]
        sent = dict(request.headers.items())
        names = header.partition("SignedHeaders=")[2].partition(",")[0]
        left = ";".join(one for one in names.split(";") if one != name)
        sent["Authorization"] = header.replace(names, left)
        response = send(request, headers=sent)
        assert response.status_code == 400
        assert code_of(response) == "IncompleteSignature"


@pytest.mark.parametrize(
    ("how", "code", "status"),
    [
        ({"secret": "wrong"}, "SignatureDoesNotMatch", 403),
        ({"key": "nobody"}, "InvalidClientTokenId", 403),
        ({"token": "session"}, "InvalidClientTokenId", 403),
        ({"service": "sns"}, "IncompleteSignature", 400),
    ],
)
def test_who_is_not_let_in(endpoint: str, how: dict[str, str], code: str, status: int) -> None:
    response = send(json_request(endpoint, "ListQueues", "{}", **how))
    assert (code_of(response), response.status_code) == (code, status)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer x",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=test",
        "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=x",
        "AWS4-HMAC-SHA256 Credential=test/20200101/r/sqs/aws4_request, SignedHeaders=host, "
        "Signature=x, Signature=y",
        "AWS4-HMAC-SHA256 " + "x" * 10_000,
    ],
)
def test_headers_that_are_no_signature(endpoint: str, header: str) -> None:
    request = json_request(endpoint, "ListQueues", "{}")
    sent = dict(request.headers.items()) | {"Authorization": header}
    response = send(request, headers=sent)
    assert response.status_code == 400
    assert code_of(response) == "IncompleteSignature"
    del sent["Authorization"]
    response = send(request, headers=sent)
    assert (code_of(response), response.status_code) == ("MissingAuthenticationToken", 403)


@pytest.mark.parametrize(("minutes", "good"), [(-14, True), (-16, False), (14, True), (16, False)])
def test_clocks_may_be_a_quarter_of_an_hour_apart(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, minutes: int, good: bool
) -> None:
    moment = datetime.now(UTC) + timedelta(minutes=minutes)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: moment)
    response = send(json_request(endpoint, "ListQueues", "{}"))
    assert response.status_code == (200 if good else 400)
    if not good:
        assert code_of(response) == "RequestExpired"


def test_presigned_requests(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{endpoint}/?Action=ListQueues&Version={VERSION}&QueueNamePrefix=a%20b"
    good = presigned(url)
    response = httpx.get(good, trust_env=False, timeout=PATIENCE_S)
    assert response.status_code == 200
    assert "<ListQueuesResponse" in response.text
    for wrong in (
        good.replace("ListQueues", "CreateQueue"),
        good.replace("Expires=60", "Expires=61"),
        good.replace("a%20b", "a%20c"),
        good[:-1] + ("0" if good[-1] != "0" else "1"),
        presigned(url, secret="wrong"),
    ):
        refused = httpx.get(wrong, trust_env=False, timeout=PATIENCE_S)
        assert refused.status_code == 403
        assert "<Code>SignatureDoesNotMatch</Code>" in refused.text
    assert httpx.post(good, trust_env=False, timeout=PATIENCE_S).status_code == 403
    assert (
        "InvalidClientTokenId"
        in httpx.get(presigned(url, token="x"), trust_env=False, timeout=PATIENCE_S).text
    )
    assert (
        httpx.get(presigned(url, 604_801), trust_env=False, timeout=PATIENCE_S).status_code == 400
    )
    moment = datetime.now(UTC) - timedelta(minutes=2)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: moment)
    late = httpx.get(presigned(url), trust_env=False, timeout=PATIENCE_S)
    assert late.status_code == 400
    assert "<Code>RequestExpired</Code>" in late.text
    assert httpx.get(presigned(url, 3_600), trust_env=False, timeout=PATIENCE_S).status_code == 200


def test_a_path_with_odd_characters_is_signed_as_it_is(endpoint: str) -> None:
    response = send(query_request(endpoint, "GetQueueAttributes", "/0/a%20b%2Fc"))
    assert response.status_code == 400
    assert "<Code>AWS.SimpleQueueService.NonExistentQueue</Code>" in response.text
