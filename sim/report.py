"""The report of a regression: table on the screen, JUnit for machines, Markdown and HTML for people."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from sim.results import KNOWN

if TYPE_CHECKING:
    from sim.regress import Finished

COLUMNS = ("test", "preset", "own seed", "result", "s", "clocks", "clocks/s", "frames", "frames/s", "records")

CAPTURES = ("In the folder of each case: `plane<n>_sent.pcap`, the frames as they left the NICs, and `plane<n>_delivered.pcap`, "
            "what the fabric made of them (Wireshark opens both); `sim.log`; `result.json`.")

WIDE = 130
"""Columns of a terminal that the whole table needs."""
NARROW = (0, 3, 4, 6, 8, 9)
"""What a narrower one shows; the files of the report have everything."""

STYLE = """body{font:14px/1.4 sans-serif;margin:2em;max-width:90em}table{border-collapse:collapse}
td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child{text-align:left}
.pass{color:#175}.fail{color:#b00;font-weight:bold}code{background:#f3f3f3;padding:.1em .3em}"""


def amount(value: float | None) -> str:
    """A number for people, an empty cell for what was not reported."""
    return "" if value is None else f"{value:,.0f}".replace(",", " ")


def row(item: "Finished") -> list[str]:
    """One line of the table."""
    out = item.outcome
    return [item.chosen.case.name, item.chosen.preset, str(item.chosen.seed), "pass" if out.passed else "FAIL",
            f"{out.seconds:.1f}", amount(out.number("clocks")), amount(out.rate("clocks")),
            amount(out.number("frames")), amount(out.rate("frames")), amount(out.number("records"))]


def total(items: Sequence["Finished"], wall: float) -> list[str]:
    """The last line of the table: sums, and rates over the simulators' own time."""
    seconds = sum(item.outcome.seconds for item in items)

    def add(name: str) -> float | None:
        values = [value for item in items if (value := item.outcome.number(name)) is not None]
        return sum(values) if values else None

    def rate(name: str) -> float | None:
        value = add(name)
        return value / seconds if value is not None and seconds else None

    failed = sum(not item.outcome.passed for item in items)
    state = f"{failed} FAILED" if failed else "all passed"
    return [f"{len(items)} cases in {wall:.0f} s", "", "", state, f"{seconds:.1f}", amount(add("clocks")),
            amount(rate("clocks")), amount(add("frames")), amount(rate("frames")), amount(add("records"))]


def write(items: Sequence["Finished"], folder: Path, wall: float, console: Console) -> None:
    """Prints the table and writes all files of the report."""
    _screen(items, wall, console)
    (folder / "junit.xml").write_bytes(junit(items, wall))
    (folder / "summary.md").write_text(markdown(items, wall, folder))
    (folder / "summary.html").write_text(page(items, wall, folder))
    (folder / "results.json").write_text(json.dumps([_record(item, folder) for item in items], indent=1) + "\n")
    for item in items:
        if not item.outcome.passed:
            console.print(f"\nFAIL {item.chosen.case.name}: {item.outcome.message}", markup=False, soft_wrap=True)
            console.print(f"  replay    {item.chosen.replay}", markup=False, soft_wrap=True)
            console.print(f"  log       {_shown(item.outcome.out / 'sim.log')}", markup=False, soft_wrap=True)
            if item.waveform:
                console.print(f"  waveform  {_shown(item.waveform)}", markup=False, soft_wrap=True)
    console.print(f"report: {_shown(folder / 'summary.md')}", markup=False, soft_wrap=True)


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _screen(items: Sequence["Finished"], wall: float, console: Console) -> None:
    wanted = range(len(COLUMNS)) if console.width >= WIDE else NARROW
    table = Table(show_edge=False, pad_edge=False)
    for index in wanted:
        table.add_column(COLUMNS[index], justify="left" if index in (0, 1, 3) else "right", no_wrap=True)
    for item in items:
        cells = row(item)
        table.add_row(*(cells[index] for index in wanted), style=None if item.outcome.passed else "bold red")
    table.add_section()
    cells = total(items, wall)
    table.add_row(*(cells[index] for index in wanted))
    console.print(table)


def _record(item: "Finished", folder: Path) -> dict[str, object]:
    """One case for machines. Paths are relative to the report, so the folder can be moved."""
    record: dict[str, object] = {
        "name": item.chosen.case.name, "preset": item.chosen.preset, "base_seed": item.chosen.base_seed,
        "seed": item.chosen.seed, "passed": item.outcome.passed, "seconds": round(item.outcome.seconds, 3),
        "replay": item.chosen.replay, "reported": item.outcome.reported}
    if not item.outcome.passed:
        record["message"] = item.outcome.message
    if item.waveform:
        record["waveform"] = str(item.waveform.relative_to(folder))
    return record


def junit(items: Sequence["Finished"], wall: float) -> bytes:
    """JUnit XML as continuous integration reads it."""
    failed = sum(not item.outcome.passed for item in items)
    suite = ElementTree.Element("testsuite", name="system", tests=str(len(items)), failures=str(failed), errors="0",
                                skipped="0", time=f"{wall:.3f}")
    for item in items:
        case = ElementTree.SubElement(suite, "testcase", classname=item.chosen.case.module,
                                      name=item.chosen.case.name, time=f"{item.outcome.seconds:.3f}")
        values = ElementTree.SubElement(case, "properties")
        for name, value in (("preset", item.chosen.preset), ("seed", item.chosen.seed),
                            ("replay", item.chosen.replay), *sorted(item.outcome.reported.items())):
            ElementTree.SubElement(values, "property", name=str(name), value=str(value))
        if not item.outcome.passed:
            failure = ElementTree.SubElement(case, "failure", message=_clean(item.outcome.message))
            failure.text = _clean(f"replay: {item.chosen.replay}\n{item.outcome.log_tail()}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _clean(text: str) -> str:
    """XML knows no control characters; simulators print some."""
    return "".join(c for c in text if c in "\n\t" or ord(c) >= 32)


def markdown(items: Sequence["Finished"], wall: float, folder: Path) -> str:
    """summary.md"""
    lines = ["# System regression", "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row(item)) + " |" for item in items]
    lines += ["| " + " | ".join(total(items, wall)) + " |", "", CAPTURES, ""]
    failures = [item for item in items if not item.outcome.passed]
    if failures:
        lines += ["## Failures", ""]
        for item in failures:
            lines += [f"- **{item.chosen.case.name}**: {item.outcome.message}",
                      f"  - replay: `{item.chosen.replay}`"]
            if item.waveform:
                lines.append(f"  - waveform: [{item.waveform.name}]({item.waveform.relative_to(folder)})")
        lines.append("")
    counted = [(item, extra(item)) for item in items if extra(item)]
    if counted:
        lines += ["## What the cases counted", ""]
        lines += [f"- {item.chosen.case.name}: {text}" for item, text in counted]
        lines.append("")
    return "\n".join(lines)


def extra(item: "Finished") -> str:
    """Reported values without a column of their own: fault counters and the like."""
    values = {name: value for name, value in item.outcome.reported.items() if name not in KNOWN}
    return ", ".join(f"{name} {json.dumps(value) if isinstance(value, dict | list) else value}"
                     for name, value in sorted(values.items()))


def page(items: Sequence["Finished"], wall: float, folder: Path) -> str:
    """summary.html: one file that needs nothing else."""
    def cells(values: Sequence[str], tag: str = "td") -> str:
        return "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values)

    body = []
    for item in items:
        kind = "pass" if item.outcome.passed else "fail"
        body.append(f'<tr class="{kind}">{cells(row(item))}</tr>')
        notes = [html.escape(extra(item))] if extra(item) else []
        if not item.outcome.passed:
            notes.append(html.escape(item.outcome.message))
            notes.append(f"replay: <code>{html.escape(item.chosen.replay)}</code>")
        if item.waveform:
            notes.append(f'<a href="{html.escape(str(item.waveform.relative_to(folder)))}">waveform</a>')
        if notes:
            body.append(f'<tr><td colspan="{len(COLUMNS)}" style="text-align:left">{"<br>".join(notes)}</td></tr>')
    return (f'<!doctype html><html lang="en"><meta charset="utf-8"><title>System regression</title>'
            f"<style>{STYLE}</style><h1>System regression</h1><table><thead><tr>{cells(COLUMNS, 'th')}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody><tfoot><tr>{cells(total(items, wall), 'th')}</tr></tfoot></table></html>\n")
