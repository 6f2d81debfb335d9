"""Whether the busiest modules are compiled (tools/compiled.py), and what is not tested then."""

from __future__ import annotations

import pytest

from onibus.core import marks

COMPILED = not marks.__file__.endswith(".py")

#: For tests that put something of their own in place of a method: compiled code does not ask.
interpreted_only = pytest.mark.skipif(COMPILED, reason="a compiled method cannot be replaced")
