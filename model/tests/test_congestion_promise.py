"""NSCC: the distance between fixed-point and float over closed-loop feedback (MRC-REQ-332, MRC-REQ-333).

These are the first sequences of the campaign, ``python -m model.nscc_campaign``, which plays 200 of each family. Seed = sequence number.
"""

from __future__ import annotations

import pytest

from model import nscc_fixed
from model.nscc_campaign import main, run

PLAIN, STORM, EVENTS = 24, 12, 10_000


def test_plain_sequences() -> None:
    """MRC-REQ-332, MRC-REQ-333: queue, marks, trims, changes of rate and path."""
    summary = run(False, range(PLAIN), EVENTS)
    assert not summary.complaints(), f"seeds 0..{PLAIN - 1}: {summary}"
    kinds = summary.kinds
    assert all(kinds[kind] > 100 for kind in ("Sack", "TrimNack", "marked", "decrease", "fast", "quick adapt")), kinds


def test_storm_sequences() -> None:
    """MRC-REQ-332, MRC-REQ-333: losses, penalties, no trimming and small MTUs besides."""
    summary = run(True, range(STORM), EVENTS)
    assert not summary.complaints(), f"seeds 0..{STORM - 1}: {summary}"
    assert all(summary.kinds[kind] > 100 for kind in ("Loss", "penalty", "marked", "decrease", "fast")), summary.kinds


@pytest.mark.parametrize("fault", ["inc in 32 bits", "average in whole ticks", "increase doubled"])
def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """N-05, N-06: the mistakes that a hardware would make are seen."""
    honest = nscc_fixed._react

    def wrong(s: nscc_fixed.State, c: nscc_fixed.Constants, now: int, n: int, marked: bool, delay: int) -> None:
        before = s.inc
        honest(s, c, now, n, marked, delay)
        if fault == "inc in 32 bits":
            s.inc &= 0xFFFFFFFF
        elif fault == "average in whole ticks":
            s.avg &= ~0xFFF
        else:
            s.inc += s.inc - before

    monkeypatch.setattr(nscc_fixed, "_react", wrong)
    assert run(False, range(6), 3000).complaints()


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says what it measured; wrong numbers are refused."""
    assert main(["--sequences", "1", "--events", "300"]) == 0
    assert "plain: 1 sequences" in capsys.readouterr().out
    assert main(["--sequences", "1", "--events", "300", "--raw"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["--sequences", "0"])
