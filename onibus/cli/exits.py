"""Exit codes: one table for every command (docs/command-line.md has it for users)."""

from __future__ import annotations

OK = 0
#: nothing was changed: what was asked for cannot be done; of check and doctor: something is broken
REFUSED = 1
#: the command, a flag or the configuration is wrong
USAGE = 2
#: the answer was lost: it may or may not have been done
UNKNOWN = 3
#: no server answers, or something failed on our side; nothing was acknowledged
FAILED = 4
#: `serve` cannot listen: the port is in use, or the address is not this machine's
CANNOT_LISTEN = 5
#: data cannot be opened or read: in use by another process, damaged, or of a newer version
CANNOT_OPEN = 6
#: of audit: nothing contradicts, and the lake is not complete enough for a proof
INCOMPLETE = 7
