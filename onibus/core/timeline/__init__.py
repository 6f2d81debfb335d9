"""The path of a message over columns whose rows come at times of their own.

A partition of the broker gets its batches one after the other, each at one moment. Whoever has the
rows of an hour, or of a year, and knows when each one came, gets the same answers here at once: who
is a duplicate of whom, which numbers and stamps are given, what waits and when it comes, what has
expired. The rules are those of core/path and are called there; what is here is time.

A timeline is the state of one partition, without its log: `Timeline` (timeline.py) takes rows in
the order of their times and says what became of them. It can stop after any row and go on later:
`encode` and `decode` (state.py), with what is large in numbered chunks (chunks.py). `Partners`
(partners.py) is a timeline of another kind: rows that wait for each other.
"""
