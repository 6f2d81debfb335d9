"""Inputs from other inputs: trees and frames are changed so that they stay well formed, mostly.

Everything drawn comes from one `random.Random`: the same seed makes the same inputs.
"""

from __future__ import annotations

import struct
from random import Random

from tests.amqp.fuzz import tree
from tests.amqp.fuzz.tree import Node, Unreadable

#: Inputs are no longer than this: longer ones say nothing that these do not.
BYTES_MAX = 1_536

_NUMBERS = (
    *(0, 1, 2, 3, 5, 127, 128, 255, 256, 511, 512, 4_999, 5_000, 65_535, 65_536, 262_144),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1),
)
_WORDS = (
    *(b"", b"q", b"s", b"t", b"t/subscriptions/u", b"q/$management", b"s/$management", b"$cbs"),
    *(b"q/$deadletterqueue", b"amqps://h:1/q", b"sb://h/", b"x" * 129, b"x" * 300, b"\xff\xfe"),
    *(b"com.microsoft:session-filter", b"com.microsoft:timeout", b"a", b"\0", "é".encode()),
    *(b"operation", b"name", b"messages", b"message", b"session-id", b"sequence-numbers"),
    *(b"lock-tokens", b"disposition-status", b"suspended", b"properties-to-modify", b"skip"),
    *(b"DeadLetterSource", b"DeadLetterSourceId", b"DeadLetterReason", b"x-opt-partition-key"),
    *(b"com.microsoft:transfer-destination-address", b"amqp:transactional-state:list"),
    *(b"com.microsoft:peek-message", b"com.microsoft:set-session-state", b"put-token"),
)
#: Constructors of one width: one stands for another.
_ALIKE: dict[int, tuple[int, ...]] = {
    4: (0x40, 0x41, 0x42, 0x43, 0x44, 0x45),
    5: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x5F),
    6: (0x60, 0x61),
    7: (0x70, 0x71, 0x72, 0x73, 0x74),
    8: (0x80, 0x81, 0x82, 0x83, 0x84),
    9: (0x94, 0x98),
    0xA: (0xA0, 0xA1, 0xA3),
    0xB: (0xB0, 0xB1, 0xB3),
    0xC: (0xC0, 0xC1),
    0xD: (0xD0, 0xD1),
    0xE: (0xE0,),
    0xF: (0xF0,),
}
_FORMS = {
    "B": (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56),
    "H": (0x60, 0x61),
    "I": (0x70, 0x71, 0x72, 0x73),
    "Q": (0x80, 0x81, 0x82, 0x83),
}


class Mutator:
    """Makes inputs of one target out of those that it has."""

    def __init__(self, random: Random, corpus: list[bytes], *, frames: bool) -> None:
        self.random = random
        self._frames = frames
        self._items: list[tree.Item] = []
        self._nodes: list[Node] = []
        for known in corpus:
            self._learn(known)

    def _learn(self, known: bytes) -> None:
        """Keep the parts of an input, to be put into others."""
        bodies = [known]
        if self._frames:
            items, _ = tree.cut(known)
            self._items += items
            bodies = [body for kind, _, body in items if kind != tree.HEADER]
        for body in bodies:
            try:
                self._nodes += [node for root in tree.read_all(body) for node in root.walk()]
            except Unreadable:
                continue

    def mutate(self, data: bytes) -> bytes:
        """Return another input."""
        random = self.random
        for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
            if random.random() < 0.12:
                data = self._bytes(data)
            elif self._frames:
                data = self._stream(data)
            else:
                data = self._body(data)
        return data[:BYTES_MAX]

    # Frames

    def _stream(self, data: bytes) -> bytes:
        items, rest = tree.cut(data)
        random = self.random
        choice = random.random()
        at = random.randrange(len(items) + 1)
        if choice < 0.2 or not items:
            items.insert(at, random.choice(self._items))
        else:
            at = min(at, len(items) - 1)
            if choice < 0.27:
                del items[at]
            elif choice < 0.34:
                items.insert(random.randrange(len(items) + 1), items[at])
            elif choice < 0.4:
                items.insert(random.randrange(len(items)), items.pop(at))
            elif choice < 0.44:
                kind, channel, body = items[at]
                items[at] = (kind, random.choice((0, 1, channel, 4_999, 65_535)), body)
            elif choice < 0.46:
                _, channel, body = items[at]
                items[at] = (random.choice((0, 1, 2, tree.HEADER)), channel, body)
            else:
                kind, channel, body = items[at]
                items[at] = (kind, channel, self._body(body))
        return tree.join(items, rest)

    # Values

    def _body(self, body: bytes) -> bytes:
        """Change something in values that follow each other."""
        try:
            roots = tree.read_all(body)
        except Unreadable:
            return self._bytes(body)
        if not roots or self.random.random() < 0.03:
            roots.insert(self.random.randrange(len(roots) + 1), self._any())
        nodes = [node for root in roots for node in root.walk()]
        self._change(self.random.choice(nodes))
        return tree.write_all(roots)

    def _change(self, node: Node) -> None:
        random = self.random
        choice = random.random()
        if choice < 0.35:
            node.take(self._any())
        elif choice < 0.4:
            node.take(Node(0, parts=[self._any(), node.copy()]))
        elif node.parts is not None and node.code != 0:
            self._change_parts(node.parts)
        elif choice < 0.6 and node.code:
            node.code = random.choice(_ALIKE.get(node.code >> 4, (0x40,)))
        elif node.code >> 4 in (0xA, 0xB):
            self._change_content(node)
        elif node.parts is None:
            node.content = self._bytes(node.content)[: max(len(node.content), 1)]

    def _change_parts(self, parts: list[Node]) -> None:
        random = self.random
        choice = random.random()
        at = random.randrange(len(parts) + 1)
        if choice < 0.4 or not parts:
            parts.insert(at, self._any())
        elif choice < 0.6:
            del parts[min(at, len(parts) - 1) :]
        elif choice < 0.8:
            parts.pop(min(at, len(parts) - 1))
        else:
            parts.append(parts[min(at, len(parts) - 1)].copy())

    def _change_content(self, node: Node) -> None:
        """Change a text, or bytes that may be a message of their own."""
        if node.content and self.random.random() < 0.6 and node.content[0] == 0:
            node.content = self._body(node.content)
        elif self.random.random() < 0.5:
            node.content = self.random.choice(_WORDS)
        else:
            node.content = self._bytes(node.content)

    def _any(self) -> Node:
        """Return any value."""
        random = self.random
        choice = random.random()
        if choice < 0.4 and self._nodes:
            return random.choice(self._nodes).copy()
        if choice < 0.6:
            form = random.choice("BHIQ")
            size = struct.calcsize(form)
            number = random.choice(_NUMBERS) & ((1 << 8 * size) - 1)
            return Node(random.choice(_FORMS[form]), number.to_bytes(size, "big"))
        if choice < 0.75:
            return Node(random.choice((0xA0, 0xA1, 0xA1, 0xA3)), random.choice(_WORDS))
        if choice < 0.85:
            return Node(random.choice(_ALIKE[4]))
        return random.choice(_ODD).copy()

    # Bytes

    def _bytes(self, data: bytes) -> bytes:
        """Change bytes, whatever they mean."""
        random = self.random
        content = bytearray(data)
        at = random.randrange(len(content) + 1)
        choice = random.randrange(5)
        if choice == 0 or not content:
            content[at:at] = random.randbytes(random.choice((1, 1, 2, 4)))
        elif choice == 1:
            del content[at : at + random.choice((1, 1, 2, 8))]
        elif choice == 2:
            del content[at:]
        elif choice == 3:
            content[min(at, len(content) - 1)] ^= 1 << random.randrange(8)
        else:
            content[min(at, len(content) - 1)] = random.choice((0, 1, 0x40, 0x7F, 0x80, 0xFF))
        return bytes(content)


def _deep(levels: int) -> Node:
    node = Node(0x45)
    for _ in range(levels):
        node = Node(0xC0, parts=[node])
    return node


#: What hardly anybody sends.
_ODD = (
    Node(0x73, b"\0\0\xd8\0"),
    Node(0x73, b"\0\x11\0\0"),
    Node(0x82, struct.pack(">d", float("nan"))),
    Node(0x82, struct.pack(">d", float("inf"))),
    Node(0x72, struct.pack(">f", 36.0)),
    Node(0x94, bytes(16)),
    Node(0x98, bytes(range(16))),
    Node(0xE0, b"\x03\x40"),
    Node(0xE0, b"\xff\x45"),
    Node(0xE0, b"\x02\x81" + bytes(16)),
    Node(0xF0, b"\0\0\x03\xff\x41"),
    Node(0xE0, b"\x01\0\x53\x09\x50\x07"),
    Node(0xC1, parts=[Node(0x45), Node(0x40)]),
    Node(0xC1, parts=[Node(0xA1, b"a"), Node(0x40)]),
    Node(0xC1, parts=[]),
    Node(0xC0, b"", []),
    Node(0x01),
    Node(0, parts=[Node(0x45), Node(0x40)]),
    Node(0, parts=[Node(0xA3, b"amqp:accepted:list"), Node(0x45)]),
    Node(0, parts=[Node(0x53, b"\x24"), Node(0x40)]),
    _deep(31),
    _deep(33),
)
