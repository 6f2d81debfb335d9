"""One request: its client, its target, and the addresses in its responses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlencode
from xml.etree.ElementTree import Element

from onibus.core.errors import Forbidden, InvalidArgument
from onibus.protocols.atom.documents import moment
from onibus.protocols.atom.paths import Resource
from onibus.protocols.atom.values import whole
from onibus.protocols.atom.xml import ATOM, local, parse
from onibus.protocols.service_bus_profile import Profile
from onibus.security.rights import Granted, Right

if TYPE_CHECKING:
    from onibus.bus import Bus
    from onibus.protocols.atom.app import AtomApp
    from onibus.protocols.http.messages import Request
    from onibus.security.kept_keys import KeptKeys

#: [SB] Entries of one page.
PAGE_COUNT_MAX = 100

#: Where clients show that they own what messages are forwarded to.
_SUPPLEMENTS = {
    "forward_to": "servicebussupplementaryauthorization",
    "forward_dead_letters_to": "servicebusdlqsupplementaryauthorization",
}


class AtomCall:
    """One request."""

    __slots__ = ("app", "granted", "place", "request")

    def __init__(self, app: AtomApp, request: Request, place: Resource, granted: Granted) -> None:
        self.app = app
        self.request = request
        self.place = place
        self.granted = granted

    @property
    def bus(self) -> Bus:
        return self.app.bus

    @property
    def kept_keys(self) -> KeptKeys | None:
        return self.app.kept_keys

    @property
    def changes(self) -> bool:
        """Return whether a PUT changes an existing entity."""
        return "if-match" in self.request.headers

    @property
    def host(self) -> str:
        """Return the host and port that the client connects to."""
        return self.request.headers.get("host", "localhost")

    @property
    def namespace(self) -> str:
        """The name of the namespace: the first word of the host."""
        return self.host.partition(":")[0].partition(".")[0]

    @property
    def profile(self) -> Profile:
        return self.app.profile

    def now(self) -> str:
        return moment(self.bus.broker.clock.wall())

    def address(self, path: str, **query: str) -> str:
        """Return the whole address of a path."""
        scheme = "https" if self.request.secure else "http"
        version = self.request.query.get("api-version", "")
        asked = urlencode({**query, "api-version": version}, safe="$")
        return f"{scheme}://{self.host}/{path}?{asked}"

    def description(self, *kinds: str) -> Element:
        """Return the description in the body, which is one of these."""
        root = parse(self.request.body)
        content = root.find(f"{{{ATOM}}}content")
        if root.tag != f"{{{ATOM}}}entry" or content is None or len(content) != 1:
            raise InvalidArgument(
                "the body must be an Atom entry with a description in its content"
            )
        if local(content[0]) not in kinds:
            raise InvalidArgument(f"{local(content[0])!r}: write {' or '.join(kinds)} here")
        return content[0]

    def page(self) -> tuple[int, int]:
        """Return how many entries to pass over, and how many to tell."""
        query = self.request.query
        skip, top = whole(query.get("$skip", "0")), whole(query.get("$top", str(PAGE_COUNT_MAX)))
        if skip < 0 or top < 1:
            raise InvalidArgument("$skip must be 0 or more, $top 1 or more")
        return skip, min(top, PAGE_COUNT_MAX)

    def grant_forwarding(self, settings: dict[str, object]) -> None:
        """Check that a client that sets up forwarding may manage the target, too."""
        for setting, header in _SUPPLEMENTS.items():
            target = settings.get(setting)
            if not isinstance(target, str):
                continue
            now = time.time()
            try:
                self.granted.grant(Right.MANAGE, target, now)
            except Forbidden:
                shown = self.request.headers.get(header)
                if shown is None:
                    raise
                self.app.known(self.request, shown).grant(Right.MANAGE, target, now)
