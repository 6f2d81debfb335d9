"""The path of a message over columns whose rows arrive at different times.

A broker partition gets its batches one after the other, each at a single time. A caller that has
the rows of an hour or a year, and their arrival times, gets the same results here in one call. The
results are duplicates, sequence numbers, stamps, scheduled rows with their times, and expired rows.
The rules are those of core/path and are called there; this package adds time.

A timeline is the state of one partition, without its log: `Timeline` (timeline.py) takes rows in
the order of their times and returns their outcomes. It can stop after any row and continue later:
`encode` and `decode` (state.py) keep its state, the large parts in numbered chunks (chunks.py).
`Partners` (partners.py) is a timeline of another kind: rows that wait for each other.
"""
