"""One partition, pure: no I/O, no clock, no randomness. The steps of a message, in order.

    path/admit        is it well-formed, and what makes it a duplicate?
    path/route        which partition does its key belong to?
    path/deduplicate  was its identity recorded inside the window?      remembered_ids
    path/stamp        its ordinal, and EnqueuedTimeUtc                  numbering
    path/enqueue      a block of the log, shown once it is durable      block, log, records
    path/deliver      delivered under a lock, or deleted on receipt     holds, sessions
    path/settle       completed, abandoned, deferred or rejected        lifecycle, marks
    path/expire       the changes that time brings                      timers
    path/dead_letter  set aside with its reason
    path/read         the log and the outcomes of its messages          log, outcomes

`partition` holds the state that they share; `subscription` is the only place where a message's
state changes; `path/recover` reads all of it back. Every change is a row in a `records.WriteBatch`,
which the broker commits before it responds to a client.
"""
