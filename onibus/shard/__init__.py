"""One store and the partitions in it: apply, commit, reply."""
