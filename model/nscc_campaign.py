"""Fixed-point NSCC against the floats over many closed-loop sequences: ``python -m model.nscc_campaign`` (MRC-REQ-332, MRC-REQ-333).

Prints one line per family (plain, storm; see :class:`model.nscc_loop.Loop`) and exits 1 when the promise is broken. The tests of the
model run the first few of the same sequences; seeds are 0, 1, 2, ...
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .congestion import EVENT_BOUND, MEAN_BOUND
from .nscc_loop import Loop, Result

BEYOND_BOUND = {False: 0.001, True: 0.01}
"""Part of the events, plain and storm, that may lie beyond EVENT_BOUND of cwnd (never of max_wnd): windows cut down packet by packet."""
STORM_MEAN_BOUND = 0.002
"""Mean distance in a storm: small MTUs, whose eta and alpha round more coarsely."""
SETTLED_BOUND = 0.001


@dataclass(frozen=True)
class Summary:
    """Results of one family together."""

    storm: bool
    results: Sequence[Result]

    @property
    def events(self) -> int:
        """Events compared."""
        return sum(r.events for r in self.results)

    @property
    def mean(self) -> float:
        """Mean distance / cwnd over all events."""
        return sum(r.total for r in self.results) / max(self.events, 1)

    @property
    def beyond(self) -> float:
        """Part of the events whose distance exceeds EVENT_BOUND of cwnd."""
        return sum(r.beyond for r in self.results) / max(self.events, 1)

    @property
    def kinds(self) -> Counter[str]:
        """How often each kind of event and of reaction came."""
        return sum((r.kinds for r in self.results), Counter())

    def complaints(self) -> list[str]:
        """What breaks the promise, one line each; empty when it holds."""
        checks = [
            (max(r.worst_of_max for r in self.results), EVENT_BOUND, "largest distance / max_wnd"),
            (self.beyond, BEYOND_BOUND[self.storm], f"part of events beyond {EVENT_BOUND:.0%} of cwnd"),
            (self.mean, STORM_MEAN_BOUND if self.storm else MEAN_BOUND, "mean distance / cwnd"),
            (max(r.worst_step for r in self.results), 1.0, "one step from the same state / its bound"),
            (sum(r.ties + r.leaps for r in self.results) / max(self.events, 1), SETTLED_BOUND, "ties and leaps per event"),
            (float(sum(len(r.wrong) for r in self.results)), 0.0, "decisions that differ and are no ties"),
        ]
        return [f"{what}: {value:.5f}, allowed {bound}" for value, bound, what in checks if value > bound]

    def __str__(self) -> str:
        worst = sorted(r.worst for r in self.results)
        held = sum(w <= EVENT_BOUND for w in worst)
        means = sum(r.mean <= MEAN_BOUND for r in self.results)
        return (
            f"{'storm' if self.storm else 'plain'}: {len(worst)} sequences, {self.events} events compared: mean {self.mean:.4%}, "
            f"worst {worst[-1]:.2%} of cwnd, {max(r.worst_of_max for r in self.results):.3%} of max_wnd; "
            f"{held} sequences within {EVENT_BOUND:.0%} at every event, {means} within {MEAN_BOUND:.1%} in their mean; "
            f"{self.beyond:.4%} of events beyond {EVENT_BOUND:.0%}; {sum(r.ties for r in self.results)} ties, {sum(r.leaps for r in self.results)} leaps; "
            f"step at most {max(r.worst_step for r in self.results):.2f} of its bound\n  "
            + ", ".join(f"{name} {count}" for name, count in sorted(self.kinds.items()))
        )  # fmt: skip


def run(storm: bool, seeds: Sequence[int], events: int, settle: bool = True, show: bool = False) -> Summary:
    """Plays the sequences ``seeds`` of a family; ``show`` counts them on stderr."""
    results = []
    for number, seed in enumerate(seeds, 1):
        results.append(Loop(seed, storm).run(events, settle))
        if show:
            print(f"\r{'storm' if storm else 'plain'} {number}/{len(seeds)}", end="\n" if number == len(seeds) else "", file=sys.stderr, flush=True)
    return Summary(storm, results)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0: the promise holds, 1: it does not."""
    parser = argparse.ArgumentParser(prog="python -m model.nscc_campaign", description="fixed-point NSCC against the float reference")
    parser.add_argument("--sequences", type=_positive, default=200, help="sequences per family (default 200)")
    parser.add_argument("--events", type=_positive, default=10_000, help="events per sequence (default 10000)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--raw", action="store_true", help="do not settle ties: show how far the two drift apart; judges nothing")
    options = parser.parse_args(arguments)
    failed = False
    for storm in (False, True):
        summary = run(storm, range(options.seed, options.seed + options.sequences), options.events, not options.raw, sys.stderr.isatty())
        print(summary)
        for line in () if options.raw else summary.complaints():
            print(f"  BROKEN: {line}")
            failed = True
        for line in [text for result in summary.results for text in result.wrong][:3]:
            print(f"  {line}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
