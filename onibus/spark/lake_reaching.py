"""Checks in a separate process that a lake's file system answers.

File systems of pyarrow may retry for minutes without a word. Azure's ends the process if it finds
no credentials. A separate process can be ended, and its end is an error like others.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

#: How long a file system may take to answer for the first time.
ANSWER_S = 25.0
#: How long one that failed is not asked again: a capture asks for each entity.
_REST_S = 60.0

#: Reads the address from its input: it may contain a secret. Prints whether the address is valid,
#: and what failed.
_PROBE = """
import signal, sys
signal.alarm(int(float(sys.argv[1])) + 5)
try:
    import pyarrow.fs as pafs
    files, root = pafs.FileSystem.from_uri(sys.stdin.read())
    files.get_file_info(root)
    try:
        files.open_input_stream(root.rstrip("/") + "/entity.json").close()
    except FileNotFoundError:
        pass
except (ValueError, NotImplementedError) as error:
    print("invalid", error)
except Exception as error:
    print("valid", str(error) or type(error).__name__)
"""
#: What C++ prints of the error that ended a process.
_THROWN = re.compile(r"what\(\): *(.+)")


class Unreachable(Exception):
    """A file system that could not be opened, or did not answer; the reason is the library's."""

    def __init__(self, reason: str, *, valid: bool) -> None:
        super().__init__(reason)
        #: whether there is a file system for such an address
        self.valid = valid


#: A user and a secret with a slash before the @: no port precedes that slash.
_SECRET_WITH_SLASH = re.compile(r"[^/@:]*:(?!\d{1,5}/)[^/@]*/.*@")


def address_of(place: str) -> str:
    """Return a lake's address as others may see it: without passwords, keys and options."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        return place.rstrip("/")
    rest = rest.partition("?")[0].rstrip("/")
    if (cut := _SECRET_WITH_SLASH.match(rest)) is not None:
        rest = rest[cut.end() - 1 :]
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    name, _, secret = user.partition(":")
    # What precedes the @ is the container of Azure, a user, or a key.
    if scheme in ("s3", "gs", "gcs") or (secret and not scheme.startswith("abf")):
        name = ""
    return f"{scheme}://{name}{'@' if name else ''}{host}{slash}{path}"


def check_answers(place: str) -> None:
    """Raise `Unreachable` unless the file system of an address answers; ask it once."""
    since, failure = _asked.get(place, (0.0, None))
    if place not in _asked or (failure is not None and time.monotonic() > since + _REST_S):
        failure = _failure(place)
        _asked[place] = time.monotonic(), failure
    if failure is not None:
        raise failure.with_traceback(None)


#: When each address was asked, and why it failed.
_asked: dict[str, tuple[float, Unreachable | None]] = {}


def _failure(place: str) -> Unreachable | None:
    """Return why a file system cannot be used; None if it answers."""
    command = [sys.executable, "-P", "-c", _PROBE, f"{ANSWER_S}"]
    try:
        done = subprocess.run(
            command, input=place, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Unreachable(f"it did not answer within {ANSWER_S:g} seconds", valid=True)
    found, _, reason = done.stdout.partition(" ")
    if found:
        return Unreachable(reason, valid=found == "valid")
    if done.returncode:
        thrown = _THROWN.search(done.stderr)
        said = thrown[1] if thrown else f"its library ended with {done.returncode}"
        return Unreachable(said, valid=True)
    return None
