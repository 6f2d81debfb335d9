"""The native HTTP API: `connection` speaks HTTP, `routes` lists all calls, `app` answers them."""
