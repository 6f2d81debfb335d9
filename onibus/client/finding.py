"""Where programs on this machine find a server and its key, unless they name them.

The command line and Spark look in the same places: the variable ONIBUS_CONNECTION, then the file
that a server writes into its data directory, then localhost with the emulator's well-known key.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from onibus.client.connecting import Target
from onibus.core.errors import InvalidArgument
from onibus.security.origins import is_local

VARIABLE = "ONIBUS_CONNECTION"
#: Where `onibus serve --data data` keeps a connection string for programs on this machine.
FILE = Path("data") / "connection-string"
#: What the emulator's programs use, and a server in development accepts.
DEVELOPMENT = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)


def find_connection(given: str | None = None) -> str:
    """Return the connection string to use; @FILE names a file that has it."""
    chosen = given or os.environ.get(VARIABLE)
    if not chosen and FILE.is_file():
        chosen = f"@{FILE}"
    if not chosen:
        return DEVELOPMENT
    if chosen.startswith("@"):
        try:
            return Path(chosen[1:]).read_text("utf-8").strip()
        except OSError as error:
            raise InvalidArgument(f"{chosen[1:]} cannot be read: {error.strerror}") from None
    return chosen


def find_key(target: Target) -> tuple[str, str]:
    """Return name and secret of a key for a server on this machine; two empty strings elsewhere.

    A key that was found for another port is not shown to this one.
    """
    if not is_local(urlsplit(target.url).hostname or ""):
        return "", ""
    found = Target.parse(find_connection())
    if _here(found) != _here(target):
        found = Target.parse(DEVELOPMENT)
    return found.key_name, found.key


def _here(target: Target) -> int | None:
    """Return the port of a server on this machine; None if it is elsewhere."""
    where = urlsplit(target.url)
    usual = 443 if where.scheme == "https" else 80
    return (where.port or usual) if is_local(where.hostname or "") else None
