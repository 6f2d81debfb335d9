"""Service Bus connection strings, and the file that holds one.

The file is for programs on this machine, such as the command line. Only its owner can read it. The
server writes it when it starts and when its key is rotated.
"""

from __future__ import annotations

import logging
from pathlib import Path

from onibus.operation.private_files import write_private
from onibus.security.kept_keys import KeptKeys
from onibus.security.keys import AccessKey

_log = logging.getLogger("onibus.server")

#: File name in the data directory.
CONNECTION_FILE = "connection-string"


def connection_string(key: AccessKey, host: str, port: int, *, tls: bool) -> str:
    """Return a connection string with its key."""
    name = f"[{host}]" if ":" in host else host
    parts = [
        f"Endpoint=sb://{name}:{port}",
        f"SharedAccessKeyName={key.name}",
        f"SharedAccessKey={key.primary}",
    ]
    if not tls:
        # Service Bus clients use plain text only if the string names a development emulator.
        parts.append("UseDevelopmentEmulator=true")
    if key.entity:
        parts.append(f"EntityPath={key.entity}")
    return ";".join(parts) + ";"


def reachable_name(host: str) -> str:
    """Return a name by which local programs reach a server that listens on an address."""
    everywhere = {"0.0.0.0": "localhost", "::": "localhost", "127.0.0.1": "localhost"}
    return everywhere.get(host, host)


class ConnectionFile:
    """A file with the connection string of the root key, updated with the key."""

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
        """Rewrite the file if the key has changed."""
        root = self._keys.root
        if root is None:
            self.path.unlink(missing_ok=True)
        elif root != self._written:
            text = connection_string(root, self._host, self._port, tls=self._tls)
            try:
                write_private(self.path, text.encode() + b"\n")
            except OSError as error:
                # The new key works all the same, and its creator has the response.
                _log.error("cannot write %s: %s", self.path, error.strerror)
                return
        self._written = root
