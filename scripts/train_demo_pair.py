"""Train the two releases of `kvrelease demo`, check them, and put them into the package.

    python scripts/train_demo_pair.py                 into kvrelease/data/demo, replacing what is there
    python scripts/train_demo_pair.py --into DIR      into a new directory
    python scripts/train_demo_pair.py --check [DIR]   only measure a pair that is there

Needs the `local` extra. A pair that fails its checks (`scripts/demo_pair/checks.py`) replaces nothing. The same seed on
another machine gives other last bits, and answers that pass the same checks.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from demo_pair.checks import measure
from demo_pair.texts import all_texts, read_lessons

SHIPPED = Path(__file__).parents[1] / "kvrelease" / "data" / "demo"


def main(argv: list[str]) -> int:
    """0 when the pair passes its checks, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=SHIPPED, metavar="DIR")
    parser.add_argument("--check", type=Path, nargs="?", const=SHIPPED, metavar="DIR")
    options = parser.parse_args(argv)
    if options.check is not None:
        return report(options.check)
    with tempfile.TemporaryDirectory() as scratch:
        train(Path(scratch))
        code = report(Path(scratch))
        if code == 0:
            for release in ("v1", "v2"):
                shutil.rmtree(options.into / release, ignore_errors=True)
                shutil.copytree(Path(scratch) / release, options.into / release)
                for path in (options.into / release).iterdir():
                    path.chmod(0o644)  # safetensors writes files that only their owner reads
            print(f"written to {options.into}")
    return code


def train(directory: Path) -> None:
    """Makes `v1` and `v2` in a directory."""
    from demo_pair.tokenizer import train_tokenizer  # noqa: PLC0415 - torch takes seconds, --help needs none
    from demo_pair.train import Trainer  # noqa: PLC0415

    started = time.monotonic()
    lessons = read_lessons()
    trainer = Trainer(lessons, train_tokenizer(all_texts(lessons)), say=lambda line: print(line, flush=True))
    trainer.learn_both(directory)
    print(f"trained in {time.monotonic() - started:.0f} s")


def report(directory: Path) -> int:
    """Prints the figures of a pair; 1 when it may not be shipped."""
    found = asyncio.run(measure(directory, read_lessons()))
    print(
        f"{found.size_bytes / 1e6:.1f} MB; {found.different:.0%} of the answers differ; "
        f"{found.consistent:.0%} of traffic would get the right answer over stale KV"
    )
    for fault in found.faults:
        print(f"fault: {fault}")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
