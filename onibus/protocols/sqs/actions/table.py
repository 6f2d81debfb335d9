"""All actions by their names."""

from __future__ import annotations

from onibus.protocols.sqs.actions import (
    attributes,
    moving,
    permissions,
    queues,
    receiving,
    redrive,
    sending,
    settling,
    tags,
)
from onibus.protocols.sqs.call import Action

ACTIONS: dict[str, Action] = {
    **queues.ACTIONS,
    **attributes.ACTIONS,
    **sending.ACTIONS,
    **receiving.ACTIONS,
    **settling.ACTIONS,
    **redrive.ACTIONS,
    **moving.ACTIONS,
    **permissions.ACTIONS,
    **tags.ACTIONS,
}
