"""What somebody who looked for faults has found: data, for the command line to print."""

from __future__ import annotations

import msgspec

#: In rising order: worth knowing; will be trouble; is broken.
NOTICE = "notice"
WARNING = "warning"
ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    severity: str
    #: the file, store or partition
    where: str
    what: str
    #: what to do about it
    advice: str = ""
