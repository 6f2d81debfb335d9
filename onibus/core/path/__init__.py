"""The verbs, in the order a message meets them; then those of its owner: peek, purge, compact."""
