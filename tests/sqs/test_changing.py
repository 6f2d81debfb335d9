"""Changing what a queue keeps, beside whoever deletes it, makes it again or spells it otherwise."""

from __future__ import annotations

import pytest

from onibus import Bus
from onibus.core.errors import EntityNotFound
from onibus.protocols.sqs.changing import change_texts
from tests.bus_helpers import run


@run
async def test_a_queue_that_was_made_again_is_another_one() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("Q", attributes={"whose": "the first"})
        first = bus.broker.find("q")
        await bus.delete_queue("q")
        with pytest.raises(EntityNotFound):
            await change_texts(bus, first, lambda texts: texts | {"more": "of the first"})
        await bus.create_queue("q", attributes={"whose": "the second"})
        with pytest.raises(EntityNotFound):
            await change_texts(bus, first, lambda texts: texts | {"more": "of the first"})
        assert bus.queue("q").settings.attributes == {"whose": "the second"}


@run
async def test_a_change_keeps_the_dead_letter_queue_however_it_is_spelled() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("morgue")
        await bus.create_queue("q", forward_dead_letters_to="Morgue")
        await change_texts(bus, bus.broker.find("q"), lambda texts: texts | {"a": "b"})
        assert bus.queue("q").settings.forward_dead_letters_to == "Morgue"
        await bus.delete_queue("morgue")
        await change_texts(bus, bus.broker.find("q"), lambda texts: texts | {"a": "c"})
        assert bus.queue("q").settings.forward_dead_letters_to is None
