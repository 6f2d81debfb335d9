"""Connection strings, as clients of Service Bus know them, and the file that has one.

The file is for programs on this machine, the command line first of all. Its owner alone can read
it. It is written when a server starts, and again when its key is rotated.
"""

from __future__ import annotations

import logging
from pathlib import Path

from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import AccessKey
from onibus.server.private_files import write_private

_log = logging.getLogger("onibus.server")

#: In the data directory.
CONNECTION_FILE = "connection-string"


def connection_string(key: AccessKey, host: str, port: int, *, tls: bool) -> str:
    """Return what a client needs to know, with the key in it."""
    name = f"[{host}]" if ":" in host else host
    parts = [
        f"Endpoint=sb://{name}:{port}",
        f"SharedAccessKeyName={key.name}",
        f"SharedAccessKey={key.primary}",
    ]
    if not tls:
        # Clients of Service Bus speak plain text only where they are told that this is no cloud.
        parts.append("UseDevelopmentEmulator=true")
    if key.entity:
        parts.append(f"EntityPath={key.entity}")
    return ";".join(parts) + ";"


def reachable_name(host: str) -> str:
    """Return a name by which programs on this machine reach a server that listens there."""
    everywhere = {"0.0.0.0": "localhost", "::": "localhost", "127.0.0.1": "localhost"}
    return everywhere.get(host, host)


class ConnectionFile:
    """The connection string of the root key, in a file that follows the key."""

    def __init__(self, path: Path, keys: KeptKeys, host: str, port: int, *, tls: bool) -> None:
        self.path = path
        self._keys = keys
        self._host = host
        self._port = port
        self._tls = tls
        self._written: AccessKey | None = None
        keys.changed = self.write
        self.write()

    def write(self) -> None:
        """Bring the file up to date, if the key has changed."""
        root = self._keys.root
        if root is None:
            self.path.unlink(missing_ok=True)
        elif root != self._written:
            text = connection_string(root, self._host, self._port, tls=self._tls)
            try:
                write_private(self.path, text.encode() + b"\n")
            except OSError as error:
                # The key is good all the same: whoever made or rotated it was told.
                _log.error("%s cannot be written: %s", self.path, error.strerror)
                return
        self._written = root
