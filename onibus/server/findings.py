"""Findings of a check, for the command line to print."""

from __future__ import annotations

import msgspec

#: In rising order: for information; a future problem; damage.
NOTICE = "notice"
WARNING = "warning"
ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """A problem that a check found."""

    severity: str
    #: the file, store or partition
    where: str
    what: str
    #: what to do
    advice: str = ""
