"""One partition, pure: no I/O, no clock, no randomness. The steps of a message, in order.

    path/admit        check it, and compute what makes it a duplicate
    path/route        choose its partition by its key
    path/deduplicate  look up its id within the window                  remembered_ids
    path/stamp        its ordinal, and EnqueuedTimeUtc                  numbering
    path/enqueue      a block of the log, shown once it is durable      block, log, records
    path/receive      deliver under a lock, or delete on receipt        holds, sessions
    path/settle       complete, abandon, defer or dead-letter           lifecycle, marks
    path/expire       apply the changes that time brings                timers
    path/dead_letter  set aside with its reason
    path/read         the log and the outcomes of its messages          log, outcomes

`partition` holds the state that they share; `subscription` is the only place where the state of a
message changes; `path/recover` reads all of it back. Every change is a row in a
`records.WriteBatch`, which the shard commits before it responds to a client.
"""
