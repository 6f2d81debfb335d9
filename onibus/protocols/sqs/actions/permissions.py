"""Permissions: the statements of a queue's policy, one per label.

The broker stores and returns a policy. It authorises requests by the rights of access keys
(docs/sqs.md).
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from onibus.protocols.sqs import errors
from onibus.protocols.sqs.actions import naming
from onibus.protocols.sqs.call import Action, SqsCall
from onibus.protocols.sqs.changing import change_texts
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.shapes import AddPermissionIn, RemovePermissionIn
from onibus.security.rights import Right

KEPT = "sqs.Policy"
ACTIONS_MAX = 7

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"\d{12}", re.ASCII)
#: What can be permitted to others.
PERMITTED = frozenset(
    {
        "*",
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
    }
)


def _check(given: AddPermissionIn) -> tuple[str, list[str], list[str]]:
    label, accounts, actions = given.label, given.account_ids, given.actions
    if not label:
        raise errors.missing("Label")
    if not _LABEL.fullmatch(label):
        reason = "Label can only include alphanumeric characters, hyphens and underscores."
        raise errors.invalid("Label", label, reason)
    if not accounts:
        raise errors.missing("AWSAccountIds")
    if not actions:
        raise errors.missing("Actions")
    if len(actions) > ACTIONS_MAX:
        text = f"{len(actions)} Actions were found, maximum allowed is {ACTIONS_MAX}."
        raise SqsError(errors.OVER_LIMIT, text)
    for account in accounts:
        if not _ACCOUNT.fullmatch(account):
            raise errors.invalid("PrincipalId", account, "Unable to verify.")
    for action in actions:
        if action not in PERMITTED:
            reason = f"Only the queue owner is allowed to invoke this action: {action}"
            raise errors.invalid("ActionName", f"SQS:{action}", reason)
    return label, accounts, actions


def _policy(texts: dict[str, str], arn: str) -> dict[str, Any]:
    text = texts.get(KEPT)
    if text is not None:
        return msgspec.json.decode(text, type=dict[str, Any])
    return {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}


def _labels(policy: dict[str, Any]) -> list[Any]:
    statements = policy.get("Statement")
    statements = statements if isinstance(statements, list) else []
    return [one.get("Sid") if isinstance(one, dict) else None for one in statements]


async def add_permission(call: SqsCall, given: AddPermissionIn) -> None:
    """Add a statement to the policy of a queue."""
    entity = call.queues.by_url(given.queue_url)
    label, accounts, actions = _check(given)
    arn = call.arn(entity)
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    named = [f"SQS:{action}" for action in actions]
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
        "Action": named[0] if len(named) == 1 else named,
        "Resource": arn,
    }

    def add(texts: dict[str, str]) -> dict[str, str]:
        policy = _policy(texts, arn)
        if label in _labels(policy):
            raise errors.invalid("Label", label, "Already exists.")
        there = policy.get("Statement")
        policy["Statement"] = [*(there if isinstance(there, list) else []), statement]
        return texts | {KEPT: json.dumps(policy)}

    await change_texts(call.bus, entity, add)


async def remove_permission(call: SqsCall, given: RemovePermissionIn) -> None:
    """Remove a statement from the policy of a queue."""
    entity = call.queues.by_url(given.queue_url)
    if not given.label:
        raise errors.missing("Label")

    def remove(texts: dict[str, str]) -> dict[str, str]:
        policy = _policy(texts, call.arn(entity))
        if given.label not in _labels(policy):
            raise errors.invalid("Label", given.label, "can't find label.")
        left = [one for one in policy["Statement"] if one.get("Sid") != given.label]
        policy["Statement"] = left
        kept = {name: text for name, text in texts.items() if name != KEPT}
        return kept | {KEPT: json.dumps(policy)} if left else kept

    await change_texts(call.bus, entity, remove)


ACTIONS: dict[str, Action] = {
    "AddPermission": Action(
        takes=AddPermissionIn, rights=(Right.MANAGE,), entity=naming.by_url, slow=add_permission
    ),
    "RemovePermission": Action(
        takes=RemovePermissionIn,
        rights=(Right.MANAGE,),
        entity=naming.by_url,
        slow=remove_permission,
    ),
}
