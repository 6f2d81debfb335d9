"""Authentication and authorisation: rights, shared access keys and their tokens."""
