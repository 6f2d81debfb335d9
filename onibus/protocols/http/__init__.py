"""The native HTTP API: `connection` speaks HTTP, `routes` lists what can be asked, `app` answers."""
