"""What the dependency rules say against what K and V really do: `python -m benchmarks.oracle`.

For each architecture a tiny random model: every stored tensor and every key of its configuration becomes another, one
at a time; K and V are computed with transformers. Prints a table in Markdown; ends with 1 if any answer was "valid"
for a layer whose KV had changed, or if more than 5 % of all answers were needlessly careful.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Sequence

from tests.release.oracle import Answer, Outcome, answers_of
from tests.release.oracle_cases import CASES

# Over all architectures: more would drop caches that could have been kept.
MAX_NEEDLESS = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """The table; 1 where the rules are wrong, or too careful."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="cases whose label holds this text")
    parser.add_argument("--list", action="store_true", help="also list every answer that was not exact")
    arguments = parser.parse_args(argv)
    cases = [case for case in CASES if not arguments.only or arguments.only.lower() in case.label.lower()]
    print("| architecture | rule | answers | exact | careful by layer | needlessly invalid | false valid | unfit |")
    print("|---|---|---|---|---|---|---|---|")
    everything: list[Answer] = []
    for case in cases:
        rule, answers = answers_of(case)
        print(_row(case.label, rule, answers), flush=True)
        if arguments.list:
            for answer in answers:
                if answer.outcome not in (Outcome.EXACT, Outcome.UNFIT):
                    print(f"  {answer.outcome.value}: {answer.what}: {answer.predicted}, measured {answer.measured}")
        everything += answers
    print(_row("**all**", "", everything))
    counts = collections.Counter(answer.outcome for answer in everything)
    measured = len(everything) - counts[Outcome.UNFIT]
    return 1 if counts[Outcome.FALSE_VALID] or counts[Outcome.NEEDLESS] > MAX_NEEDLESS * measured else 0


def _row(label: str, rule: str, answers: Sequence[Answer]) -> str:
    counts = collections.Counter(answer.outcome for answer in answers)
    measured = len(answers) - counts[Outcome.UNFIT]
    cells = [
        label,
        f"`{rule}`" if rule else "",
        measured,
        counts[Outcome.EXACT],
        counts[Outcome.CAREFUL],
        f"{counts[Outcome.NEEDLESS]} ({counts[Outcome.NEEDLESS] / max(measured, 1):.1%})",
        counts[Outcome.FALSE_VALID],
        counts[Outcome.UNFIT],
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
