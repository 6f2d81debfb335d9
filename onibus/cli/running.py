"""Runs a server on the fastest event loop there is, and turns how it ended into an exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable

import uvloop

from onibus.cli import exits
from onibus.core.errors import (
    AlreadyOpen,
    Damaged,
    EntityExists,
    InvalidArgument,
    NewerFormat,
    StoreFailed,
)
from onibus.server.config import Config
from onibus.server.run import Ready, serve
from onibus.server.server import CannotListen

_log = logging.getLogger("onibus.server")


def run_server(
    config: Config,
    announce: Callable[[Ready], None],
    begun: float,
    fail: Callable[[int, str], int],
) -> int:
    """Serve until somebody says stop; return the exit code."""
    try:
        uvloop.run(serve(config, announce, begun))
    except (InvalidArgument, EntityExists) as error:
        return fail(exits.USAGE, str(error))
    except CannotListen as error:
        return fail(exits.CANNOT_LISTEN, str(error))
    except AlreadyOpen as error:
        return fail(exits.CANNOT_OPEN, f"{error}; another server may be running on this directory")
    except (NewerFormat, Damaged, StoreFailed, OSError) as error:
        return fail(exits.CANNOT_OPEN, f"the data cannot be opened: {error}")
    except Exception:
        _log.exception("the server failed")
        return exits.FAILED
    return exits.OK
