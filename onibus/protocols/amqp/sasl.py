"""SASL, as a server speaks it (specification, part 5, 5.3).

ANONYMOUS, EXTERNAL and MSSBCBS accept a peer without a name, which proves its rights by SAS tokens
(`service_bus/cbs.py`). PLAIN names a shared access key and shows the key itself.
"""

from __future__ import annotations

from collections.abc import Callable

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.errors import NOT_ALLOWED, ConnectionFailed, DecodeError
from onibus.protocols.amqp.frames import SASL, frame
from onibus.protocols.amqp.performatives import performative, read_list

MECHANISMS, INIT, OUTCOME = 0x40, 0x41, 0x44
#: Outcomes: success, wrong credentials, and unchecked ones that may be sent again later (5.3.3.6).
OK, AUTH, LATER = 0, 1, 4
NAMELESS = ("MSSBCBS", "ANONYMOUS", "EXTERNAL")
PLAIN = "PLAIN"

#: Takes the name and the secret of PLAIN; returns whether they are valid.
Check = Callable[[str, str], bool]


def mechanisms() -> bytes:
    """Return the frame that lists the mechanisms."""
    offered = performative(MECHANISMS, [to.symbols([NAMELESS[0], PLAIN, *NAMELESS[1:]])])
    return frame(0, offered, SASL)


def outcome(code: int) -> bytes:
    """Return the frame with the outcome of authentication."""
    return frame(0, performative(OUTCOME, [to.ubyte(code), to.NULL]), SASL)


def is_let_in(body: bytes, check: Check) -> bool:
    """Return whether the mechanism and the secret of a peer authenticate it."""
    code, fields, _ = read_list(body)
    if code != INIT or not fields or not isinstance(fields[0], str):
        raise ConnectionFailed(NOT_ALLOWED, "send sasl-init first")
    if fields[0] in NAMELESS:
        return True
    if fields[0] != PLAIN:
        return False
    shown = fields[1] if len(fields) > 1 else None
    if not isinstance(shown, bytes):
        return False
    try:
        parts = shown.decode().split("\0")
    except UnicodeDecodeError:
        raise DecodeError("name and secret must be strings") from None
    return len(parts) == 3 and check(parts[1], parts[2])
