"""The client of asyncio programs; the blocking one is made of it by tools/blocking.py."""
