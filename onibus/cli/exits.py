"""Exit codes of the command line."""

from __future__ import annotations

OK = 0
#: the command, a flag or the configuration is wrong
USAGE = 2

# Of commands that ask a server

#: the server said no: nothing was changed
REFUSED = 1
#: the answer was lost: it may or may not have been done
UNKNOWN = 3
#: no server answers, or it failed; nothing was acknowledged
UNREACHABLE = 4

# Of serve

#: something went wrong on our side
FAILED = 1
#: the server cannot listen: the port is in use, or the address is not this machine's
CANNOT_LISTEN = 3
#: the data directory cannot be opened: in use, damaged, or of a newer version
CANNOT_OPEN = 4
