"""What a Bus can be asked, group by group; `bus.py` puts them together."""
