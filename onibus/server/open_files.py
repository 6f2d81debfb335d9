"""The number of connections: the limit of open files minus the files of stores.

A store that cannot open a file fails its commit and goes offline. So the server sets files aside
for stores before it accepts connections. It does not start if too few connections remain.
"""

from __future__ import annotations

import resource

from onibus.core.errors import InvalidArgument
from onibus.operation.peers import MARGIN

#: Files of the process: standard streams, the event loop, listeners on two address families, name
#: lookups, logs and child processes. About 20 are in use; the rest is spare.
PROCESS_FILES = 40
#: Files of a store: 13 always, 13 while it is reopened, 16 large blocks being written, and 8 for
#: reads and syncs.
STORE_FILES = 50
#: A server with fewer connections than this does not start.
_CONNECTIONS_MIN = 16


def allow_open_files(connections: int, stores: int) -> int:
    """Raise the limit of open files as needed; return the number of connections it allows.

    Many systems set it to 1,024 unless a program raises it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    beside = PROCESS_FILES + STORE_FILES * stores + MARGIN
    wanted = connections + beside
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    allowed = connections if soft == resource.RLIM_INFINITY else min(connections, soft - beside)
    if allowed < min(connections, _CONNECTIONS_MIN):
        needed = beside + _CONNECTIONS_MIN
        raise InvalidArgument(
            f"the limit of open files is {soft}, and a server with {stores} stores needs {needed}: "
            "raise the limit (ulimit -n)"
        )
    return allowed
