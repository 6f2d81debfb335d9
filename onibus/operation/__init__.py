"""Watching a bus at work: what it counts, whether it is well, what it writes into its log."""
