"""The dispatch of commands: one handler each, in the file of its verb in `path/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onibus.core import commands as c
from onibus.core.path import (
    change_visibility,
    claim,
    configure,
    deduplicate,
    delete,
    held,
    inspect,
    peek,
    purge,
    read,
    receive,
    receive_deferred,
    receive_fifo,
    renew,
    schedule,
    session,
    settle,
    undefer,
)

#: Takes the partition, the command, bus time, wall time and the batch of the commit.
Handler = Callable[..., Any]

HANDLERS: dict[Any, Handler] = {
    c.Receive: receive.receive,
    c.ReceiveFifo: receive_fifo.receive_fifo,
    c.ReceiveDeferred: receive_deferred.receive_deferred,
    c.Settle: settle.settle,
    c.Delete: delete.delete,
    c.Renew: renew.renew,
    c.ChangeVisibility: change_visibility.change_visibility,
    c.Cancel: schedule.cancel,
    c.Undefer: undefer.undefer,
    c.AcceptSession: session.accept_session,
    c.RenewSession: session.renew_session,
    c.ReleaseSession: session.release_session,
    c.SetSessionState: session.set_session_state,
    c.GetSessionState: session.session_state,
    c.ListSessions: session.list_sessions,
    c.ListSessionStates: session.session_states,
    c.WarmSessions: session.warm_sessions,
    c.ListSessionIds: session.list_ids,
    c.DescribeSessions: session.describe_some,
    c.Peek: peek.peek,
    c.Tail: peek.tail,
    c.CountReasons: peek.count_reasons,
    c.CountPurgeable: purge.count_purgeable,
    c.Purge: purge.purge,
    c.ForgetIds: purge.forget_ids,
    c.Claim: claim.claim,
    c.CompleteClaimed: claim.complete_claimed,
    c.ReleaseClaimed: claim.release_claimed,
    c.ListClaimOwners: claim.list_owners,
    c.ListClaimed: claim.list_claimed,
    c.ReadClaimed: claim.read_claimed,
    c.IsClaimed: claim.is_claimed,
    c.ChangeSettings: configure.change_settings,
    c.ChangeSubscription: configure.change_subscription,
    c.SetRules: configure.set_rules,
    c.KeepFor: configure.keep_for,
    c.KeepNoLonger: configure.keep_no_longer,
    c.SetStampsBack: configure.set_stamps_back,
    c.FindHeld: held.find_held,
    c.Inspect: inspect.inspect,
    c.GetStamp: inspect.get_stamp,
    c.PlanLog: read.plan_log,
    c.PlanOutcomes: read.plan_outcomes,
    c.CheckLog: read.check_log,
    c.FindSince: read.find_since,
    c.ListDuplicates: deduplicate.list_duplicates,
}

#: Raises what the handler would raise: for a command that several partitions carry out atomically.
CHECKS: dict[Any, Callable[..., Any]] = {
    c.ReceiveDeferred: receive_deferred.find_deferred,
    c.Settle: settle.find_settled,
    c.Cancel: schedule.find_scheduled,
    c.Undefer: undefer.find_undeferrable,
}
