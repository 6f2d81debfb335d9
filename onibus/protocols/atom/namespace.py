"""The description of the namespace itself."""

from __future__ import annotations

from onibus.protocols.atom.call import AtomCall
from onibus.protocols.atom.documents import answer, entry, moment
from onibus.protocols.atom.xml import escaped, tag
from onibus.protocols.http.messages import Response


async def show_namespace(call: AtomCall) -> Response:
    """Return the description of the namespace; its age is that of its oldest entity."""
    broker = call.bus.broker
    times = [entity.created for entity in broker.namespace.entities.values()]
    times = times or [broker.clock.wall()]
    created, name = moment(min(times)), call.namespace
    inner = (
        tag("Alias", "")
        + tag("CreatedTime", created)
        + tag("MessagingSKU", call.profile.sku)
        + tag("MessagingUnits", str(call.profile.units))
        + tag("ModifiedTime", moment(max(times)))
        + tag("Name", escaped(name))
        + tag("NamespaceType", "Messaging")
    )
    return answer(entry(call.address(call.place.path), name, created, "NamespaceInfo", inner))
