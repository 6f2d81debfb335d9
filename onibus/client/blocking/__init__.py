"""The client of plain programs. All but `renewing` is made of `aio` by tools/blocking.py."""
