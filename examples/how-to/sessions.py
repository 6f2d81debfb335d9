"""Process messages in order with sessions: python examples/how-to/sessions.py"""

import asyncio
import tempfile

from onibus import Bus, Message, errors


async def send(bus: Bus) -> None:
    """Send three steps for each of two sessions."""
    await bus.create_queue("steps", requires_session=True)
    for step in (b"1", b"2", b"3"):
        await bus.send("steps", Message(body=step, session_id="anna"))
        await bus.send("steps", Message(body=step, session_id="ben"))


async def accept_by_id(bus: Bus) -> None:
    """Accept one session: no other receiver can accept it."""
    async with await bus.accept_session("steps", "anna") as session:
        for message in await session.receive(2):
            print(session.session_id, message.body)
            await session.complete(message)
        try:
            await bus.accept_session("steps", "anna")
        except errors.SessionLocked as error:
            print("rejected:", error)


async def accept_next(bus: Bus) -> None:
    """Accept the next available session and process its messages."""
    try:
        session = await bus.accept_session("steps", wait_ms=1_000)
    except errors.NoSession:
        return
    async with session:
        while messages := await session.receive(10):
            await session.complete(*messages)


async def close_without_settling(bus: Bus) -> None:
    """Close a session with an unsettled message: its delivery count stays the same."""
    await bus.send("steps", Message(body=b"4", session_id="anna"))
    async with await bus.accept_session("steps", "anna") as session:
        await session.renew_lock()
        received = await session.receive(10)
        assert received[-1].body == b"4"

    async with await bus.accept_session("steps", "anna") as session:
        (message, *_) = await session.receive(10)
        assert message.delivery_count == 0
        await session.complete(message)


async def keep_state(bus: Bus) -> None:
    """Save the progress of a session with the session."""
    async with await bus.accept_session("steps", "anna") as session:
        await session.set_state(b"step 3 is done")

    async with await bus.accept_session("steps", "anna") as session:
        assert await session.get_state() == b"step 3 is done"


def list_sessions(bus: Bus) -> None:
    """Print every session that has messages or state."""
    for session in bus.sessions("steps"):
        print(session.session_id, session.ready_count, session.held_count, session.state)


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await send(bus)
            await accept_by_id(bus)
            await accept_next(bus)
            await close_without_settling(bus)
            await keep_state(bus)
            list_sessions(bus)


if __name__ == "__main__":
    asyncio.run(main())
