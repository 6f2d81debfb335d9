"""Telling systemd how far the server has come, where it was started by it (Type=notify)."""

from __future__ import annotations

import contextlib
import os
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> bool:
    """Send a state to whoever started this process; tell whether anybody wanted to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        # A name of Linux's that is no file.
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.connect(address)
        out.sendall(state.encode())
        return True
    return False
