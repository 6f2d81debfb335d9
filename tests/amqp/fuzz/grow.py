"""Let targets run for long, and keep what reaches new code: `make fuzz SECONDS=600`.

Each target runs for so long; what it found is added to its corpus, short inputs first, up to a size
that CI replays in no time. Defects are left as `crash-…` files, and the targets after it still run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.amqp.fuzz.run import CORPUS, corpus_of, has_atheris, watch
from tests.amqp.fuzz.seeds import SEEDS, write_corpus

#: Inputs of one target, and their bytes.
_COUNT_MAX = 250
_BYTES_MAX = 40_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("targets", nargs="*", default=list(SEEDS))
    given = parser.parse_args()
    if not has_atheris():
        sys.exit("atheris is not installed: it is needed to find new inputs")
    failed = [name for name in given.targets if not _grow(name, given.seconds, given.seed)]
    if failed:
        sys.exit(f"defects were found by {', '.join(failed)}: see the crash-… files")


def _grow(target: str, seconds: int, seed: int) -> bool:
    """Run a target, and add to its corpus; tell whether nothing is wrong."""
    corpus = corpus_of(target)
    options = {"max_total_time": seconds, "seed": seed or time.time_ns() % 2**31}
    with tempfile.TemporaryDirectory() as folder:
        ended = watch(target, corpus, options, Path(folder))
        found = sorted((path.read_bytes() for path in Path(folder).iterdir()), key=len)
    size = sum(map(len, corpus))
    for data in found:
        size += len(data)
        if ended or len(corpus) >= _COUNT_MAX or size > _BYTES_MAX:
            break
        corpus.append(data)
    write_corpus(CORPUS / f"{target}.hex", corpus)
    return ended == 0


if __name__ == "__main__":
    main()
