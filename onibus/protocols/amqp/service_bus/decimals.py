"""Decimals for the Python client, which reads decimal128 in its own way.

All clients send the 16 bytes of a decimal128 and get them as they were sent. Two forms exist:

| form     | exponent, plus 6,176                  | digits                      | sent by         |
| standard | 14 bits after the sign                | one number of 113 bits      | Python          |
| .NET     | split: 7 bits from bit 9, 7 from bit 0 | one number of 96 bits      | .NET            |

.NET reads both, because it uses only the lowest byte of a negative exponent. The Python client
reads the exponent as .NET writes it, but takes the digits as three decimal numbers of eight digits.
It fails on every other form, and a message that it cannot read is lost in receive-and-delete. So it
gets the form that it reads, and a string where a number has more digits than fit.
"""

from __future__ import annotations

import struct
from decimal import Decimal

from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp.decode import skip
from onibus.protocols.amqp.service_bus import sections

#: What the Python client calls itself when it opens a connection.
PYTHON = "azsdk-python-servicebus"

_DECIMAL128 = 0x94
_LISTS, _MAPS, _DESCRIBED = (0xC0, 0xD0), (0xC1, 0xD1), 0x00
_BIAS = 6_176
#: The upper half of an exponent from -32 to 95 in the form of .NET: no usual number begins so.
_NET = 0x0C
_EXPONENTS = range((_NET << 9) - _BIAS, (_NET << 9) - _BIAS + 128)
#: Infinities and NaN begin so.
_SPECIAL = 0x60
_CHUNK = 10**8
_CHUNKS = struct.Struct(">BBxxIII").pack


def readable(message: bytes) -> bytes:
    """Return a message whose decimals the Python client can read."""
    if _DECIMAL128 not in message:
        return message
    parts = []
    for code, start, value, end in sections.split(message):
        parts.append(message[start:value])
        parts.append(message[value:end] if code == sections.DATA else _rewritten(message, value))
    return b"".join(parts)


def _rewritten(data: bytes, at: int) -> bytes:
    """Return the value that begins there, with its decimals rewritten."""
    code = data[at]
    if code == _DECIMAL128:
        return _for_python(data[at + 1 : at + 17])
    if code == _DESCRIBED:
        value = skip(data, at + 1)
        return data[at:value] + _rewritten(data, value)
    if code in _LISTS:
        return to.list_([_rewritten(one, 0) for one in sections.elements(data, at)])
    if code in _MAPS:
        return to.map_([_rewritten(one, 0) for one in sections.elements(data, at)])
    return data[at : skip(data, at)]


def _for_python(content: bytes) -> bytes:
    """Return a decimal128 as the Python client reads it."""
    first, second = content[0] & 0x7F, content[1]
    if first & _SPECIAL == _SPECIAL:
        return bytes((_DECIMAL128,)) + content
    sign = content[0] >> 7
    exponent = (first << (9 if first == _NET else 7) | second >> 1) - _BIAS
    digits = int.from_bytes(bytes((second & 1,)) + content[2:], "big")
    high, low = divmod(digits, _CHUNK)
    high, middle = divmod(high, _CHUNK)
    if exponent not in _EXPONENTS or high >= 1 << 32:
        return to.string(str(Decimal((sign, tuple(map(int, str(digits))), exponent))))
    lower = (exponent + _BIAS & 0x7F) << 1
    return bytes((_DECIMAL128,)) + _CHUNKS(sign << 7 | _NET, lower, high, middle, low)
