"""Discovery of a local server and its key, for programs that name neither.

The command line and Spark look in the same places: the variable ONIBUS_CONNECTION, the file that a
server writes to its data directory, then localhost with the emulator's well-known key.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from onibus.client.connecting import Target
from onibus.core.errors import InvalidArgument
from onibus.security.origins import is_local

VARIABLE = "ONIBUS_CONNECTION"
#: File with a connection string, which `onibus serve --data data` writes.
FILE = Path("data") / "connection-string"
#: The emulator's connection string, which a server in development accepts.
DEVELOPMENT = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)


def find_connection(given: str | None = None) -> str:
    """Return the connection string to use; @FILE names a file that contains it."""
    chosen = given or os.environ.get(VARIABLE)
    if not chosen and FILE.is_file():
        chosen = f"@{FILE}"
    if not chosen:
        return DEVELOPMENT
    if chosen.startswith("@"):
        try:
            return Path(chosen[1:]).read_text("utf-8").strip()
        except OSError as error:
            raise InvalidArgument(f"cannot read {chosen[1:]}: {error.strerror}") from None
    return chosen


def find_key(target: Target) -> tuple[str, str]:
    """Return name and secret of a key for a server on this machine, otherwise two empty strings.

    A key of a server on another port is not sent to this one.
    """
    if not is_local(urlsplit(target.url).hostname or ""):
        return "", ""
    found = Target.parse(find_connection())
    if _here(found) != _here(target):
        found = Target.parse(DEVELOPMENT)
    return found.key_name, found.key


def _here(target: Target) -> int | None:
    """Return the port of a server on this machine, or None."""
    where = urlsplit(target.url)
    usual = 443 if where.scheme == "https" else 80
    return (where.port or usual) if is_local(where.hostname or "") else None
