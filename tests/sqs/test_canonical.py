"""What is signed, built here once more by the book: a verifier takes exactly that."""

from __future__ import annotations

import hmac
import re
from calendar import timegm
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onibus.protocols.http.messages import Head, Request
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.sigv4 import Key, Verifier, derive
from onibus.security.keys import AccessKey, Keyring

DATE = "20260102T030405Z"
NOW = timegm((2026, 1, 2, 3, 4, 5))
SCOPE = "20260102/eu-north-1/sqs/aws4_request"
SECRETS = ("a secret that is one", "another secret of it")
KEY = AccessKey(name="sender", primary=SECRETS[0], secondary=SECRETS[1])
VERIFIER = Verifier(Keyring([KEY]))


def sign(headers: dict[str, str], names: list[str], body: bytes, secret: str) -> str:
    """Return the Authorization header of a POST to /, from the description of the algorithm."""
    lines = []
    for name in names:
        value = headers.get(name, "").strip()
        lines.append(f"{name}:{re.sub('  +', ' ', value)}\n")
    signed = ";".join(names)
    canonical = f"POST\n/\n\n{''.join(lines)}\n{signed}\n{sha256(body).hexdigest()}"
    hashed = sha256(canonical.encode("latin-1")).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{DATE}\n{SCOPE}\n{hashed}"
    signature = hmac.new(derive(secret, SCOPE), text.encode(), "sha256").hexdigest()
    return (
        f"AWS4-HMAC-SHA256 Credential=sender/{SCOPE}, SignedHeaders={signed}, Signature={signature}"
    )


def check(headers: dict[str, str], body: bytes) -> tuple[AccessKey, str]:
    return VERIFIER.check(Request(Head("POST", "/", "", headers), body), NOW)


names = st.text("ab-%s(){}0_", min_size=1, max_size=6).map("x-".__add__)
values = st.text("a %s:;\t\xa0é", max_size=8)


@given(
    more=st.dictionaries(names, values, max_size=4),
    absent=st.lists(names, max_size=1),
    body=st.binary(max_size=20),
    secret=st.sampled_from(SECRETS),
)
@settings(max_examples=300, deadline=None)
def test_signatures_of_any_headers(
    more: dict[str, str], absent: list[str], body: bytes, secret: str
) -> None:
    headers = {"host": "h:1", "x-amz-date": DATE, **more}
    signed = sorted({*headers, *absent})
    headers["authorization"] = sign(headers, signed, body, secret)
    assert check(headers, body) == (KEY, "eu-north-1")
    for name in signed:
        for other in (headers.get(name, "") + "x", "x" + headers.get(name, "")):
            if name != "x-amz-date":
                with pytest.raises(SqsError) as refused:
                    check(headers | {name: other}, body)
                assert refused.value.kind is errors.SIGNATURE_DIFFERS
    with pytest.raises(SqsError):
        check(headers, body + b"x")


@given(secret=st.text(max_size=80), text=st.binary(max_size=200))
def test_a_key_signs_as_hmac_does(secret: str, text: bytes) -> None:
    secret = secret.encode("utf-8", "replace").decode()
    expected = hmac.new(derive(secret, SCOPE), text, "sha256").hexdigest()
    assert Key(secret, SCOPE).sign(text) == expected.encode()
