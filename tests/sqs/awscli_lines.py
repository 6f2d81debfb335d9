"""awscli, told what to ask: a line in is one command, a line out is its answer.

Starting it anew for each command, as a shell does, takes ten times as long.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from awscli.clidriver import create_clidriver

_ERROR = re.compile(r"An error occurred \((\S+)\) when calling the \w+ operation: (.*)", re.DOTALL)


def run(driver: Any, action: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run one command as a shell would; return what it prints."""
    verb = re.sub(r"(?<!^)(?=[A-Z])", "-", action).lower()
    words = ["--endpoint-url", os.environ["ENDPOINT"], "--output", "json", "sqs", verb]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = driver.main([*words, "--cli-input-json", json.dumps(given)])
    if code:
        found = _ERROR.search(err.getvalue())
        name, text = (found[1], found[2].strip()) if found else ("", err.getvalue())
        return {"error": {"code": name, "message": text}}
    return {"result": json.loads(out.getvalue() or "{}")}


if __name__ == "__main__":
    driver = create_clidriver()
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(run(driver, asked["action"], asked["given"])), flush=True)
