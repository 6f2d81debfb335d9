"""What can be asked over HTTP, group by group; `routes.py` puts the groups together."""
