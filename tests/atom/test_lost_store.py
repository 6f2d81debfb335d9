"""While a store is gone the entity reads Limited, and nothing of it can be changed (P10)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError

from onibus import Message
from onibus.client import Client, Retry
from onibus.core.errors import OnibusError
from tests.atom.helpers import administration
from tests.bus_helpers import KEYS
from tests.client.server_helpers import development_string
from tests.over_http.on_disk import Place
from tests.server.processes import wait_for


@pytest.mark.promise("P10")
def test_an_entity_with_a_lost_store_is_limited(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.serve("--tls") as server, administration(server) as azure:
        made = azure.create_queue("q", enable_partitioning=True)
        assert azure.get_queue("q").availability_status == "Available"
        with Client.connect(development_string(server.port), retry=Retry(attempts=1)) as client:
            os.rename(place.stores["a"], tmp_path / "elsewhere")

            def limited() -> bool:
                # Somebody has to use the store: that its files are gone is seen after a commit.
                for key in KEYS:
                    try:
                        client.send("q", Message(body=b"probe", partition_key=key))
                    except OnibusError:
                        continue
                return bool(azure.get_queue("q").availability_status == "Limited")

            wait_for(limited)
        made.max_delivery_count = 3
        for change in (
            lambda: azure.update_queue(made),
            lambda: azure.delete_queue("q"),
            lambda: azure.create_queue("new", enable_partitioning=True),
        ):
            with pytest.raises(HttpResponseError) as caught:
                change()
            assert caught.value.status_code == 503
        assert azure.get_queue("q").max_delivery_count == 10
        assert azure.get_queue_runtime_properties("q").total_message_count > 0
        (listed,) = azure.list_queues()
        assert (listed.name, listed.availability_status) == ("q", "Limited")
