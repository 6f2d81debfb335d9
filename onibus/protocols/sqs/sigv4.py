"""AWS signatures, version 4: they prove who signed a request and that it is unchanged.

The *canonical request* is the method, path, query, the headers that the signer names, and the
SHA-256 of the body. The client signs a string of its hash, the time and the scope
(date/region/service). The signing key is derived from the secret by date, region and service. The
scope's region may be any; its service is sqs. The signature is in the Authorization header, or in
the query of a presigned request.

The access key id is the name of a shared access key, and the secret one of its two keys. This
server issues no temporary credentials, so it rejects session tokens.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Protocol
from urllib.parse import parse_qsl, quote, unquote

from onibus.protocols.http.messages import Request
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.signed import Signed
from onibus.security.keys import DEVELOPMENT_SQS, AccessKey

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
#: How far the clocks of signer and server may be apart.
SKEW_SECONDS = 15 * 60
#: How long a presigned request can be good at most.
PRESIGNED_SECONDS_MAX = 7 * 24 * 3_600
#: Derived keys that are kept.
KEYS_KEPT = 1_000
#: Longer Authorization headers are rejected; a presigned query may have four times as many bytes.
AUTHORIZATION_LENGTH_MAX = 8_192

_DATE = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_SPACES = re.compile(r"  +")
_UNRESERVED = "-_.~"
_SIGNATURE = "X-Amz-Signature"
#: Headers that name the server and the action must be signed, if they are present.
_MUST_BE_SIGNED = ("host", "x-amz-target")


class AccessKeys(Protocol):
    """Knows the keys of a name."""

    def named(self, name: str) -> Sequence[AccessKey]: ...


class Scope:
    """The claimed signer, date, region and signed headers of a signature, not yet verified."""

    __slots__ = ("access_key", "day", "form", "names", "region", "text", "unsigned")

    def __init__(self, credential: str, headers: str) -> None:
        parts = credential.rsplit("/", 4)
        if len(parts) != 5 or parts[4] != "aws4_request":
            raise _incomplete("Credential must be KEY/DATE/REGION/SERVICE/aws4_request.")
        self.access_key, self.day, self.region, service, _ = parts
        if service != SERVICE:
            raise _incomplete(f"Credential should be scoped to correct service: '{SERVICE}'.")
        self.text = credential[len(self.access_key) + 1 :]
        #: names of the headers that were signed, as the signer wrote them
        self.names = headers.split(";")
        lines = [name.replace("%", "%%") + ":%s\n" for name in self.names]
        #: their part of the canonical request, to be filled in with their values
        self.form = "".join(lines) + "\n" + headers.replace("%", "%%")
        #: headers that must be signed and were not
        self.unsigned = [name for name in _MUST_BE_SIGNED if name not in self.names]


class Key:
    """A key that signs for one scope: an HMAC begun with what all strings have in common.

    Two hashes are copied instead of an object of `hmac`, which takes half as long again.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: str, scope: str) -> None:
        block = derive(secret, scope).ljust(64, b"\0")
        self._inner = sha256(bytes([byte ^ 0x36 for byte in block]))
        self._outer = sha256(bytes([byte ^ 0x5C for byte in block]))

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a byte string, in hexadecimal digits."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.hexdigest().encode()


class Verifier:
    """Checks signatures against the keys of a bus."""

    def __init__(self, keys: AccessKeys) -> None:
        self._keys = keys
        #: by secret and scope
        self._derived: dict[tuple[str, str], Key] = {}

    def check(self, request: Request, now: float) -> tuple[AccessKey, str]:
        """Return the key that signed a request, and its region; or reject it."""
        signed, keys = self._look(request, now)
        scope, text = signed.scope, _text_to_sign(request, signed)
        signature = signed.signature.encode("utf-8", "replace")
        good = None
        for key in keys:
            for secret in (key.primary, key.secondary):
                if secret:
                    expected = self._key(secret, scope.text).sign(text)
                    if compare_digest(expected, signature):
                        good = key
        if good is not None:
            return good, scope.region
        raise SqsError(
            errors.SIGNATURE_DIFFERS,
            "The request signature we calculated does not match the signature you provided. "
            "Check your AWS Secret Access Key and signing method.",
        )

    def hint(self) -> str:
        """Return which access keys are accepted."""
        if self._keys.named(DEVELOPMENT_SQS.name) == [DEVELOPMENT_SQS]:
            return f"use {DEVELOPMENT_SQS.name} with the secret {DEVELOPMENT_SQS.primary}"
        return "use the name of a shared access key (onibus keys list), and its key as the secret"

    def look(self, request: Request, now: float) -> None:
        """Reject a request by its headers alone, before its body is read."""
        self._look(request, now)

    def _look(self, request: Request, now: float) -> tuple[Signed, Sequence[AccessKey]]:
        """Return the signature that a request claims, and the keys of that name."""
        signed = read(request)
        moment, until = signed.moment, signed.until
        last = moment + (SKEW_SECONDS if until is None else until)
        if now > last or now < moment - SKEW_SECONDS:
            raise SqsError(
                errors.EXPIRED,
                f"Signature expired or not yet valid: {signed.date}; look at the clocks of both "
                "sides.",
            )
        keys = self._keys.named(signed.scope.access_key)
        if not keys:
            raise SqsError(
                errors.INVALID_KEY, "The security token included in the request is invalid."
            )
        return signed, keys

    def _key(self, secret: str, scope: str) -> Key:
        name = (secret, scope)
        key = self._derived.get(name)
        if key is None:
            if len(self._derived) >= KEYS_KEPT:
                self._derived.clear()
            key = self._derived[name] = Key(secret, scope)
        return key


def derive(secret: str, scope: str) -> bytes:
    """Return the key that signs for one day, region and service."""
    key = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        key = digest(key, part.encode("utf-8", "replace"), "sha256")
    return key


def read(request: Request) -> Signed:
    """Return the signature that a request claims; reject one that cannot be valid."""
    headers = request.head.headers
    if "x-amz-security-token" in headers:
        raise SqsError(
            errors.INVALID_KEY,
            "The security token included in the request is invalid: session tokens are not known "
            "here, use an access key.",
        )
    text = headers.get("authorization")
    if text is not None:
        if len(text) > AUTHORIZATION_LENGTH_MAX:
            raise _incomplete(f"Authorization header requires {ALGORITHM}.")
        before, _, signature = text.rpartition("Signature=")
        scope = _scope(before)
        if not signature or "," in signature:
            raise _incomplete(
                "Authorization header requires 'Signature' parameter, as the last one."
            )
        date = headers.get("x-amz-date")
        if date is None:
            raise _incomplete("Authorization header requires existence of a 'X-Amz-Date' header.")
        signed = Signed(scope, signature.strip(), date, _moment(date, scope.day))
    elif _SIGNATURE in request.query_text:
        signed = _of_query(request)
    else:
        raise SqsError(errors.MISSING_TOKEN, "Request is missing Authentication Token")
    for name in signed.scope.unsigned:
        if name == "host" or name in headers:
            raise _incomplete(f"'{name}' must be a SignedHeader.")
    return signed


def access_key_of(request: Request) -> str:
    """Return the access key id that a request names, if it names one."""
    try:
        return read(request).scope.access_key
    except SqsError:
        return ""


def region_of(request: Request) -> str:
    """Return the region of an unauthenticated request, if it names one."""
    try:
        return read(request).scope.region
    except SqsError:
        return ""


@lru_cache(1_024)
def _scope(text: str) -> Scope:
    """Read the part before a signature: the same in all requests of a client in one day."""
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
    query: dict[str, str] = {}
    for name, value in parse_qsl(request.query_text, keep_blank_values=True):
        # A signature does not sign itself, so one more of them would not show otherwise.
        if name in query and name.startswith("X-Amz-"):
            raise _incomplete(f"The query has '{name}' twice.")
        query[name] = value
    if "X-Amz-Security-Token" in query:
        raise SqsError(errors.INVALID_KEY, "The security token included in the request is invalid.")
    names = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
    for name in names:
        if not query.get(f"X-Amz-{name}"):
            raise _incomplete(f"The query requires 'X-Amz-{name}'.")
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}.")
    scope = Scope(query["X-Amz-Credential"], query["X-Amz-SignedHeaders"])
    date = query["X-Amz-Date"]
    moment = _moment(date, scope.day)
    seconds = query["X-Amz-Expires"]
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 9):
        raise _incomplete("X-Amz-Expires must be a number of seconds.")
    if not 0 < int(seconds) <= PRESIGNED_SECONDS_MAX:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {PRESIGNED_SECONDS_MAX}.")
    return Signed(scope, query[_SIGNATURE], date, moment, int(seconds))


@lru_cache(64)
def _moment(date: str, day: str) -> int:
    """Return a date in seconds since 1970, if it is of the day that the scope gives."""
    if not _DATE.fullmatch(date):
        raise _incomplete("X-Amz-Date must be in the ISO 8601 basic format.")
    parts = (date[:4], date[4:6], date[6:8], date[9:11], date[11:13], date[13:15])
    try:
        moment = timegm(tuple(map(int, parts)))
    except ValueError:
        raise _incomplete("X-Amz-Date is no date.") from None
    if day != date[:8]:
        raise _incomplete("Date in Credential scope does not match X-Amz-Date.")
    return moment


def _text_to_sign(request: Request, signed: Signed) -> bytes:
    head, scope = request.head, signed.scope
    value_of = head.headers.get
    values = [value_of(name, "").strip() for name in scope.names]
    filled = scope.form % (*values,)
    if "  " in filled:
        filled = scope.form % (*[_SPACES.sub(" ", value) for value in values],)
    path = "/" if head.path == "/" else _path(head.path)
    query = _query(head.query_text, signed) if head.query_text else ""
    body = sha256(request.body).hexdigest()
    canonical = f"{head.method}\n{path}\n{query}\n{filled}\n{body}"
    hashed = sha256(canonical.encode("latin-1", "replace")).hexdigest()
    return f"{ALGORITHM}\n{signed.date}\n{scope.text}\n{hashed}".encode("utf-8", "replace")


def _path(path: str) -> str:
    # It is encoded a second time, as all services but S3 have it.
    return quote(path, safe="/" + _UNRESERVED)


def _query(text: str, signed: Signed) -> str:
    """Return the query, re-encoded and sorted, without the signature itself."""
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
