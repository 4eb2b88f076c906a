"""The first difference between hardware and golden model."""

from __future__ import annotations

from collections.abc import Iterable


class LockstepError(Exception):
    """Hardware and golden model differ, or a rule that the lockstep watches is broken. The text is the whole report."""


class Mismatch(Exception):
    """Raised inside a check: what is wrong, and the differing fields as (name, hardware, golden)."""

    def __init__(self, what: str, fields: Iterable[tuple[str, object, object]] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.fields = list(fields)

    def table(self) -> str:
        """Both sides, field by field."""
        if not self.fields:
            return self.what
        rows = [("field", "hardware", "golden")] + [(name, show(ours), show(golden)) for name, ours, golden in self.fields]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        return "\n".join([self.what, *(f"  {a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in rows)])


def show(value: object) -> str:
    """Small numbers in decimal, large ones in both."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 9:
        return f"{int(value)} ({int(value):#x})"
    if isinstance(value, bytes) and len(value) > 32:
        return f"{value[:32].hex()}... ({len(value)} bytes)"
    return value.hex() if isinstance(value, bytes) else str(value)
