"""Run a server on the fastest event loop available, and return its exit code."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from onibus.bus import Bus
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

#: New objects before a collection of the youngest, and collections before one of the older ones.
_COLLECT_AFTER = (20_000, 20, 20)

_log = logging.getLogger("onibus.server")


def _run(serving: Coroutine[Any, Any, None]) -> None:
    """Run the server with uvloop if it is installed: it is faster than asyncio's own loop."""
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def rest_collector() -> None:
    """Let the garbage collector look at new objects only, and rarely.

    Objects created so far stay, and few later ones form cycles: looking for cycles took a tenth of
    the time of a send.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def run_server(
    config: Config,
    announce: Callable[[Ready], None],
    begun: float,
    fail: Callable[[int, str], int],
    prepare: Callable[[Bus], Awaitable[None]] | None = None,
) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit code."""

    def started(ready: Ready) -> None:
        announce(ready)
        rest_collector()

    try:
        _run(serve(config, started, begun, *([prepare] if prepare else [])))
    except (InvalidArgument, EntityExists) as error:
        return fail(exits.USAGE, str(error))
    except CannotListen as error:
        return fail(exits.CANNOT_LISTEN, str(error))
    except AlreadyOpen as error:
        return fail(exits.CANNOT_OPEN, f"{error}: stop the other server or use another directory")
    except (NewerFormat, Damaged, StoreFailed, OSError) as error:
        return fail(exits.CANNOT_OPEN, f"cannot open the data: {error}")
    except Exception:
        _log.exception("server failed")
        return exits.FAILED
    return exits.OK
