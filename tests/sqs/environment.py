"""The environment of a client that is a process of its own."""

from __future__ import annotations

import os


def clean(**variables: str) -> dict[str, str]:
    """Return an environment in which nothing else tells clients where to go."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {
        **kept,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_MAX_ATTEMPTS": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        **variables,
    }
