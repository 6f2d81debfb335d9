"""One partition, pure: no I/O, no clock, no randomness. The way of a message, in order.

    path/admit        is it well-formed, and what makes it a duplicate?
    path/route        which partition does its key belong to?
    path/deduplicate  was its identity recorded inside the window?      remembered_ids
    path/stamp        its ordinal, and EnqueuedTimeUtc                  numbering
    path/enqueue      a block of the log, shown once it is durable      block, log, records
    path/deliver      given to a receiver, under a hold or for good     holds, sessions
    path/settle       completed, abandoned, deferred or rejected        lifecycle, marks
    path/expire       what happens by itself when time passes           timers
    path/dead_letter  set aside with its reason
    path/read         read again, and what became of it                 log, outcomes

`partition` holds the state that they share; `subscription` is the only place where a message's
state changes; `path/recover` reads all of it back. Every change is a row in a `records.WriteBatch`,
which the broker commits before anybody is answered.
"""
