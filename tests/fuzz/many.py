"""Feed a protocol many inputs, one target after another: `make fuzz TARGET=arrow INPUTS=2000000`.

The inputs are shared out evenly among the protocol's targets.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.registry import PROTOCOLS, targets_of
from tests.fuzz.run import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("protocols", nargs="*", help=f"{', '.join(PROTOCOLS)}; default: all")
    parser.add_argument("--inputs", type=int, default=200_000, help="for each protocol")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    failed = []
    for protocol in given.protocols or list(PROTOCOLS):
        targets = targets_of([protocol])
        share = -(-given.inputs // len(targets))
        begun = time.monotonic()
        if sum(run(target, 0, share, given.seed, given.processes) for target in targets):
            failed.append(protocol)
        seconds = time.monotonic() - begun
        print(f"{protocol}: {share * len(targets)} inputs in {seconds:.0f} s", flush=True)
    if failed:
        sys.exit(f"defects were found in {', '.join(failed)}: see the crash-… files")


if __name__ == "__main__":
    main()
