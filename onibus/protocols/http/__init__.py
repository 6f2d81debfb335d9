"""The native HTTP API: `connection` handles HTTP, `routes` lists all calls, `app` executes them."""
