"""Feed a protocol many inputs, one target after another: `make fuzz TARGET=arrow INPUTS=2000000`.

The inputs are shared out evenly among the protocol's targets. SIGTERM ends a run with its figures.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.registry import PROTOCOLS, targets_of
from tests.fuzz.run import end_at_sigterm, run
from tests.simulator.bounds import upper_bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("protocols", nargs="*", help=f"{', '.join(PROTOCOLS)}; default: all")
    parser.add_argument("--inputs", type=int, default=200_000, help="for each protocol")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    end_at_sigterm()
    failed = []
    for protocol in given.protocols or list(PROTOCOLS):
        targets = targets_of([protocol])
        share = -(-given.inputs // len(targets))
        begun = time.monotonic()
        all_fed = [run(target, 0, share, given.seed, given.processes) for target in targets]
        inputs = sum(one.inputs for one in all_fed)
        seconds = time.monotonic() - begun
        told = f"{protocol}: {inputs:,} inputs of seed {given.seed} in {seconds:.0f} s"
        if any(one.failed for one in all_fed):
            failed.append(protocol)
        else:
            told += f", rate of failure with 95 % confidence (3/n): {upper_bound(inputs)}"
        print(told, flush=True)
    if failed:
        sys.exit(f"defects were found in {', '.join(failed)}: see the crash-… files")


if __name__ == "__main__":
    main()
