"""What a request says of its own signature, before anything of it is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from onibus.protocols.sqs.sigv4 import Scope


class Signed(msgspec.Struct, eq=False):
    """What a request says of its own signature."""

    scope: Scope
    signature: str
    date: str
    #: the date in seconds since 1970
    moment: int
    #: for how many seconds it is good; None where only the clocks count
    until: int | None = None
