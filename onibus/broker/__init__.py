"""The broker connects the core, the stores and time; shard/commits.py makes changes durable."""
