"""Programs against a server on its default ports: default_ports.py up|serve PYTHON FOLDER PROGRAM…

Run it in a network namespace: `unshare --net`, or as an ordinary user also `--map-root-user`. It
starts the server as `make run` does, with or without its pipeline, and runs the programs one after
the other in the folder. It prints their exit codes and output as JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41


def raise_loopback() -> None:
    """Bring up the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP_RUNNING))


def start_server(verb: str, folder: Path) -> subprocess.Popen[str]:
    """Start the server of `make run`; return when it is ready."""
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "onibus", verb, "--json"),
            *("--config", str(ROOT / "examples/onibus.toml"), "--data", "data"),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    assert json.loads(server.stdout.readline())["http"]
    return server


def main() -> None:
    """Run the programs and print what each did."""
    verb, python, folder, *programs = sys.argv[1:]
    raise_loopback()
    home = Path(folder, "server")
    home.mkdir()
    server = start_server(verb, home)
    done = {}
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        for program in programs:
            ended = subprocess.run(
                [python, program],
                cwd=folder,
                env=clean,
                capture_output=True,
                text=True,
                check=False,
            )
            done[program] = [ended.returncode, ended.stdout, ended.stderr]
    finally:
        server.terminate()
        server.wait()
    print(json.dumps(done))


if __name__ == "__main__":
    main()
