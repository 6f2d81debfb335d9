"""A server of Iceberg's REST protocol, in front of a catalog in a SQLite file.

It has the calls that a capture and a reader need: configuration, namespaces, and tables that are
created, loaded, committed and dropped. pyiceberg has a client of the protocol and no server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, StagedTable
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

#: What the protocol answers to the errors of a catalog.
STATUS = {
    exceptions.NoSuchNamespaceError: 404,
    exceptions.NoSuchTableError: 404,
    exceptions.NamespaceAlreadyExistsError: 409,
    exceptions.TableAlreadyExistsError: 409,
    exceptions.CommitFailedException: 409,
    # The metadata of a table was moved.
    FileNotFoundError: 500,
}


class RestCatalog(NamedTuple):
    """A running server; `calls` has the method and the path of each request."""

    uri: str
    calls: list[tuple[str, str]]
    #: answer commits with this status, after they were made
    lost: list[int]


class _Handler(BaseHTTPRequestHandler):
    database: ClassVar[str]
    seen: ClassVar[list[tuple[str, str]]]
    lost: ClassVar[list[int]]

    def _answer(self) -> None:
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.seen.append((self.command, "/".join(path)))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            with closing(load_catalog("served", uri=self.database)) as catalog:
                status, content = 200, _call(catalog, self.command, path[1:], body)
            if self.command == "POST" and len(path) == 5 and self.lost:
                status, content = self.lost.pop(), _error("the answer was lost")
        except tuple(STATUS) as error:
            status, content = STATUS[type(error)], _error(str(error))
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815

    def log_message(self, *given: Any) -> None:
        """Print nothing."""


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "Failed", "code": 0}}).encode()


def _call(catalog: Catalog, method: str, path: list[str], body: bytes) -> bytes:
    match method, path:
        case "GET", ["config"]:
            return b'{"defaults": {}, "overrides": {}}'
        case "POST", ["namespaces"]:
            given = json.loads(body)
            catalog.create_namespace(tuple(given["namespace"]), given["properties"])
            return json.dumps(given).encode()
        case "GET" | "HEAD", ["namespaces", name]:
            found = catalog.load_namespace_properties((name,))
            return json.dumps({"namespace": [name], "properties": found}).encode()
        case "POST", ["namespaces", name, "tables"]:
            return _staged(catalog, CreateTableRequest.model_validate_json(body))
        case "GET" | "HEAD", ["namespaces", name, "tables", table]:
            one = catalog.load_table((name, table))
            return _told(one.metadata_location, one.metadata)
        case "POST", ["namespaces", name, "tables", table]:
            request = CommitTableRequest.model_validate_json(body)
            named: Any = StagedTable.__new__(StagedTable)
            named._identifier = (name, table)
            done = catalog.commit_table(named, request.requirements, request.updates)
            return _told(done.metadata_location, done.metadata)
        case "DELETE", ["namespaces", name, "tables", table]:
            catalog.drop_table((name, table))
            return b""
    raise NotImplementedError(f"{method} {path}")


def _staged(catalog: Catalog, request: CreateTableRequest) -> bytes:
    """Answer what a table would be: a commit makes it."""
    assert request.stage_create
    assert request.location is not None
    metadata = new_table_metadata(
        request.table_schema,
        request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
        request.write_order or UNSORTED_SORT_ORDER,
        request.location,
        request.properties,
    )
    return _told(None, metadata)


def _told(location: str | None, metadata: Any) -> bytes:
    told = {"metadata": json.loads(metadata.model_dump_json())}
    return json.dumps(told | ({"metadata-location": location} if location else {})).encode()


@contextmanager
def rest_catalog(database: str) -> Iterator[RestCatalog]:
    """Serve the catalog in a database."""
    calls: list[tuple[str, str]] = []
    lost: list[int] = []
    handler = type("Handler", (_Handler,), {"database": database, "seen": calls, "lost": lost})
    make: Callable[..., HTTPServer] = HTTPServer
    server = make(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield RestCatalog(f"http://127.0.0.1:{server.server_address[1]}", calls, lost)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
