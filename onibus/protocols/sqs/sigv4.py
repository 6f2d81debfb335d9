"""Signatures of AWS, version 4: who signed a request, and that nothing in it was changed.

What is signed is the *canonical request*: method, path, query, the headers that the signer names,
and the SHA-256 of the body. Its hash, the moment and the scope (date/region/service) make the text
that is signed, under a key that is derived from the secret by date, region and service. The scope's
region may be any; its service is sqs. The signature stands in the Authorization header, or in the
query of a presigned request.

The access key id is the name of a shared access key, and the secret one of its two keys. Temporary
credentials (a session token) are nothing that this server gives out: they are refused.
"""

from __future__ import annotations

import hmac
import re
from calendar import timegm
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Protocol
from urllib.parse import quote, unquote

from onibus.protocols.http.messages import Request
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError
from onibus.security.keys import AccessKey

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
#: How far the clocks of signer and server may be apart.
SKEW_SECONDS = 15 * 60
#: How long a presigned request can be good at most.
PRESIGNED_SECONDS_MAX = 7 * 24 * 3_600
#: Derived keys that are remembered.
KEYS_KEPT = 1_000
#: Longer ones are no signatures of anybody; presigned ones have the same parts.
AUTHORIZATION_LENGTH_MAX = 8_192

_DATE = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_SPACES = re.compile(r"  +")
_UNRESERVED = "-_.~"
_SIGNATURE = "X-Amz-Signature"
#: What decides what is done must be signed, where it is there.
_MUST_BE_SIGNED = ("host", "x-amz-target")


class AccessKeys(Protocol):
    """Knows the keys of a name."""

    def named(self, name: str) -> Iterable[AccessKey]: ...


class Scope:
    """Who says to have signed, for when and what, and which headers; nothing is believed yet."""

    __slots__ = ("access_key", "day", "headers", "names", "region", "text", "unsigned")

    def __init__(self, credential: str, headers: str) -> None:
        parts = credential.rsplit("/", 4)
        if len(parts) != 5 or parts[4] != "aws4_request":
            raise _incomplete("Credential must be KEY/DATE/REGION/SERVICE/aws4_request.")
        self.access_key, self.day, self.region, service, _ = parts
        if service != SERVICE:
            raise _incomplete(f"Credential should be scoped to correct service: '{SERVICE}'.")
        self.text = credential[len(self.access_key) + 1 :]
        #: names of the headers that were signed, as the signer wrote them
        self.headers = headers
        self.names = headers.split(";")
        #: what decides what is done, and was not signed
        self.unsigned = [name for name in _MUST_BE_SIGNED if name not in self.names]


class Signed:
    """What a request says of its own signature."""

    __slots__ = ("date", "moment", "scope", "signature", "until")

    def __init__(self, scope: Scope, signature: str, date: str) -> None:
        self.moment = _moment(date)
        if scope.day != date[:8]:
            raise _incomplete("Date in Credential scope does not match X-Amz-Date.")
        self.scope = scope
        self.signature = signature
        self.date = date
        #: for how many seconds it is good; None where only the clocks count
        self.until: int | None = None


class Verifier:
    """Checks signatures against the keys of a bus."""

    def __init__(self, keys: AccessKeys) -> None:
        self._keys = keys
        #: begun with the derived key, by secret and scope
        self._begun: dict[tuple[str, str], hmac.HMAC] = {}

    def check(self, request: Request, now: float) -> tuple[AccessKey, str]:
        """Return the key that signed a request, and its region; or refuse it."""
        signed = read(request)
        _check_time(signed, now)
        keys = self._known(signed)
        text = _text_to_sign(request, signed)
        good = None
        for key in keys:
            for secret in (key.primary, key.secondary):
                if secret and self._is_by(secret, signed, text):
                    good = key
        if good is not None:
            return good, signed.scope.region
        raise SqsError(
            errors.SIGNATURE_DIFFERS,
            "The request signature we calculated does not match the signature you provided. "
            "Check your AWS Secret Access Key and signing method.",
        )

    def look(self, request: Request, now: float) -> None:
        """Refuse a request, of which only the head is there, that cannot be a good one."""
        signed = read(request)
        _check_time(signed, now)
        self._known(signed)

    def _known(self, signed: Signed) -> list[AccessKey]:
        keys = list(self._keys.named(signed.scope.access_key))
        if not keys:
            raise SqsError(
                errors.INVALID_KEY, "The security token included in the request is invalid."
            )
        return keys

    def _is_by(self, secret: str, signed: Signed, text: bytes) -> bool:
        name = (secret, signed.scope.text)
        begun = self._begun.get(name)
        if begun is None:
            if len(self._begun) >= KEYS_KEPT:
                self._begun.clear()
            derived = derive(secret, signed.scope.text)
            begun = self._begun[name] = hmac.new(derived, digestmod="sha256")
        expected = begun.copy()
        expected.update(text)
        signature = signed.signature.encode("utf-8", "replace")
        return hmac.compare_digest(expected.hexdigest().encode(), signature)


def derive(secret: str, scope: str) -> bytes:
    """Return the key that signs for one day, region and service."""
    key = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode("utf-8", "replace"), "sha256")
    return key


def read(request: Request) -> Signed:
    """Return what a request says of its signature, or refuse what cannot be one."""
    if "x-amz-security-token" in request.headers:
        raise SqsError(
            errors.INVALID_KEY,
            "The security token included in the request is invalid: session tokens are not known "
            "here, use an access key.",
        )
    text = request.headers.get("authorization")
    if text is not None:
        signed = _of_header(text, request)
    elif _SIGNATURE in request.query_text:
        signed = _of_query(request)
    else:
        raise SqsError(errors.MISSING_TOKEN, "Request is missing Authentication Token")
    for name in signed.scope.unsigned:
        if name == "host" or name in request.headers:
            raise _incomplete(f"'{name}' must be a SignedHeader.")
    return signed


def region_of(request: Request) -> str:
    """Return the region of a request that nobody checks, if it tells one."""
    try:
        return read(request).scope.region
    except SqsError:
        return ""


def _of_header(text: str, request: Request) -> Signed:
    if len(text) > AUTHORIZATION_LENGTH_MAX:
        raise _incomplete(f"Authorization header requires {ALGORITHM}.")
    before, _, signature = text.rpartition("Signature=")
    scope = _scope(before)
    if not signature or "," in signature:
        raise _incomplete("Authorization header requires 'Signature' parameter, as the last one.")
    date = request.headers.get("x-amz-date")
    if date is None:
        raise _incomplete("Authorization header requires existence of a 'X-Amz-Date' header.")
    return Signed(scope, signature.strip(), date)


@lru_cache(1_024)
def _scope(text: str) -> Scope:
    """Read what stands before a signature: the same in all requests of a client and a day."""
    algorithm, _, rest = text.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"Authorization header requires {ALGORITHM}.")
    parts: dict[str, str] = {}
    for part in rest.rstrip(", ").split(","):
        name, _, value = part.strip().partition("=")
        if name in parts:
            raise _incomplete(f"Authorization header has '{name}' twice.")
        parts[name] = value
    for name in ("Credential", "SignedHeaders"):
        if not parts.get(name):
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    if "Signature" in parts:
        raise _incomplete("Authorization header has 'Signature' twice.")
    return Scope(parts["Credential"], parts["SignedHeaders"])


def _of_query(request: Request) -> Signed:
    if len(request.query_text) > AUTHORIZATION_LENGTH_MAX * 4:
        raise _incomplete("The query is too long.")
    query = request.query
    if "X-Amz-Security-Token" in query:
        raise SqsError(errors.INVALID_KEY, "The security token included in the request is invalid.")
    names = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
    for name in names:
        if not query.get(f"X-Amz-{name}"):
            raise _incomplete(f"The query requires 'X-Amz-{name}'.")
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}.")
    scope = Scope(query["X-Amz-Credential"], query["X-Amz-SignedHeaders"])
    signed = Signed(scope, query[_SIGNATURE], query["X-Amz-Date"])
    seconds = query["X-Amz-Expires"]
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 9):
        raise _incomplete("X-Amz-Expires must be a number of seconds.")
    if not 0 < int(seconds) <= PRESIGNED_SECONDS_MAX:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {PRESIGNED_SECONDS_MAX}.")
    signed.until = int(seconds)
    return signed


def _check_time(signed: Signed, now: float) -> None:
    moment = signed.moment
    until = moment + (SKEW_SECONDS if signed.until is None else signed.until)
    if now > until or now < moment - SKEW_SECONDS:
        raise SqsError(
            errors.EXPIRED,
            f"Signature expired or not yet valid: {signed.date}; look at the clocks of both sides.",
        )


@lru_cache(64)
def _moment(date: str) -> int:
    if not _DATE.fullmatch(date):
        raise _incomplete("X-Amz-Date must be in the ISO 8601 basic format.")
    parts = (date[:4], date[4:6], date[6:8], date[9:11], date[11:13], date[13:15])
    try:
        return timegm(tuple(map(int, parts)))
    except ValueError:
        raise _incomplete("X-Amz-Date is no date.") from None


def _text_to_sign(request: Request, signed: Signed) -> bytes:
    headers = request.headers
    lines = [request.method, _path(request.path), _query(request.query_text, signed)]
    for name in signed.scope.names:
        value = headers.get(name, "").strip()
        lines.append(f"{name}:{_SPACES.sub(' ', value) if '  ' in value else value}")
    lines += ("", signed.scope.headers, sha256(request.body).hexdigest())
    canonical = "\n".join(lines).encode("latin-1", "replace")
    hashed = sha256(canonical).hexdigest()
    return f"{ALGORITHM}\n{signed.date}\n{signed.scope.text}\n{hashed}".encode("utf-8", "replace")


def _path(path: str) -> str:
    # It is encoded a second time, as all services but S3 have it.
    return path if path == "/" else quote(path, safe="/" + _UNRESERVED)


def _query(text: str, signed: Signed) -> str:
    """Return the query, encoded anew and sorted; a signature does not sign itself."""
    if not text:
        return ""
    pairs = []
    for part in text.split("&"):
        name, _, value = part.partition("=")
        pairs.append((_encoded(name), _encoded(value)))
    if signed.until is not None:
        pairs = [pair for pair in pairs if pair[0] != _SIGNATURE]
    return "&".join([f"{name}={value}" for name, value in sorted(pairs)])


def _encoded(text: str) -> str:
    return quote(
        unquote(text, errors="surrogateescape"), safe=_UNRESERVED, errors="surrogateescape"
    )


def _incomplete(text: str) -> SqsError:
    return SqsError(errors.INCOMPLETE_SIGNATURE, text)
