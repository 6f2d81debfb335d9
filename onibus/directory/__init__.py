"""What the namespace's own store decides: entities, readers, claims, producers, operations."""
