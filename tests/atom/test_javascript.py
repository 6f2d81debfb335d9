"""Everything that the administration client of JavaScript can do."""

from __future__ import annotations

import json

import pytest

from tests.amqp.sdk_helpers import SCRIPTS
from tests.atom.helpers import Name, connection
from tests.node import run_node
from tests.server.processes import Served

WORDS = ("queue/of", "partitioned", "source", "target", "topic/of", "owned")


@pytest.mark.promise("P1", "B3", "B6")
def test_all_kinds_of_entities_over_their_lives(server: Served, name: Name) -> None:
    names = {word.partition("/")[0]: name(word) for word in WORDS}
    said = run_node(
        SCRIPTS / "administration.mjs",
        CONNECTION=connection(server),
        BOSS=connection(server, "boss", "p" * 44),
        STRANGER=connection(server, key="not the key"),
        NODE_EXTRA_CA_CERTS=server.ready["certificate"],
        NAMES=json.dumps(names),
    )
    assert said.endswith("all done\n")
