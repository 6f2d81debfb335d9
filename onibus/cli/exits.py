"""Exit codes of every command (docs/command-line.md lists them for users)."""

from __future__ import annotations

OK = 0
#: the request was rejected and nothing changed; check and doctor: they found a problem
REFUSED = 1
#: the command, an option or the configuration is wrong
USAGE = 2
#: the response was lost: the operation may or may not have happened
UNKNOWN = 3
#: no server responds, or the server failed; it acknowledged nothing
FAILED = 4
#: `serve` cannot listen: the port is in use, or this machine does not have the address
CANNOT_LISTEN = 5
#: the data cannot be opened: in use by another process, damaged, or written by a newer version
CANNOT_OPEN = 6
#: audit: no contradiction found, but the lake is not complete enough for a proof
INCOMPLETE = 7
