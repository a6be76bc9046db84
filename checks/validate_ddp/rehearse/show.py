"""The report of a rehearsal: for people, and as JSON."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from validate_ddp import __version__
from validate_ddp.catalogue import Finding
from validate_ddp.catalogue.registry import name_of
from validate_ddp.rehearse.outcome import Judged, shown_path
from validate_ddp.report import Options, counts, plural
from validate_ddp.report.drawing import draw
from validate_ddp.report.places import Files
from validate_ddp.report.printable import escape, paint

SCHEMA = 1


class _Quoted(NamedTuple):
    """What reports want of an outcome: the findings, and the text of a path."""

    findings: tuple[Finding, ...]
    files: int
    texts: Any


def _texts(judged: Judged) -> Any:
    import os

    def text(path: str) -> str | None:
        try:
            with open(os.path.join(judged.run.cwd, path), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return None

    return text


def as_text(judged: Judged, options: Options) -> str:
    """How the script ended, the findings, the facts, the rules, and what was changed for the rehearsal."""
    rows = [*_ending(judged, options)]
    files = Files(_Quoted(judged.findings, 1, _texts(judged)))  # type: ignore[arg-type]
    for finding in judged.findings:
        rows += [*draw(finding, files, options), ""]
    rows += _facts(judged, options)
    rows += _rules(judged, options)
    rows += _remarks(judged, options)
    rows.append(_summary(judged, options))
    return "".join(row + "\n" for row in rows)


def _ending(judged: Judged, options: Options) -> list[str]:
    run, failure = judged.run, judged.failure
    rows: list[str] = []
    if judged.failed and failure is not None:
        who = f"rank {failure.rank}" if failure.rank is not None else "the script"
        where = f" ({failure.place})" if failure.place else ""
        head = f"the script failed: {who} first: {failure.message.splitlines()[0] if failure.message else ''}{where}"
        rows += [paint(escape(head), "error", options.color)]
        rows += [f"    {escape(line)}" for line in failure.traceback.rstrip().splitlines()]
        rows.append("")
    elif run.outcome == "timeout":
        rows += [paint(f"the script was ended after {run.seconds:.0f} s (--timeout)", "error", options.color)]
    elif run.outcome == "hang":
        rows += [paint("the ranks wait, and nothing can let them go on: the run was ended", "error", options.color)]
    elif judged.failed:
        rows += [paint(f"the run did not come to its end ({run.outcome})", "error", options.color)]
    if judged.positions:
        rows += [*(f"  {escape(row)}" for row in judged.positions), ""]
    return rows


def _facts(judged: Judged, options: Options) -> list[str]:
    found = judged.facts
    samples = found["samples"]
    rows = [
        ("world size", found["world_size"]),
        ("batch size of a rank", found["batch_size"]),
        ("accumulation (backwards a step)", found["accumulation"]),
        ("effective batch size", found["effective_batch_size"]),
        ("optimizer steps", found["optimizer_steps"]),
        ("optimizer steps an epoch", found["optimizer_steps_per_epoch"]),
        ("reductions of gradients a step", found["reductions_per_step"]),
    ]
    shared = _shared_devices(judged)
    if shared:
        rows.append(("GPUs", shared))
    if samples:
        missed = "unknown" if samples["missed"] is None else samples["missed"]
        text = f"{samples['seen']} of {samples['in_data_set']} seen, {samples['repeated']} repeated, {missed} missed"
        rows.append(("samples in the first epoch", text))
    for each in found["checkpoints"]:
        ranks = ", ".join(map(str, each["ranks"]))
        rows.append(("saved", f"{shown_path(judged.run, each['path'])} by rank {ranks}"))
    width = max(len(name) for name, _ in rows)
    lines = [
        f"  {name.ljust(width)}  {'not observed' if value is None else escape(str(value))}" for name, value in rows
    ]
    return [paint("observed", "bold", options.color), *lines, ""]


def _shared_devices(judged: Judged) -> str:
    """Which ranks of one node asked for the same GPU, and for no other."""
    run = judged.run
    size = max(1, int(run.plan.get("nproc_per_node", 1)))
    by_device: dict[tuple[int, int], list[str]] = {}
    for rank, indices in judged.facts["devices"].items():
        if len(indices) == 1:
            by_device.setdefault((int(rank) // size, indices[0]), []).append(rank)
    return "; ".join(
        f"ranks {', '.join(ranks)} share GPU {index}" for (_, index), ranks in by_device.items() if len(ranks) > 1
    )


def _rules(judged: Judged, options: Options) -> list[str]:
    by_word: dict[str, list[str]] = {"violated": [], "held": [], "not observed": []}
    for code, verdict in judged.verdicts.items():
        by_word[verdict.word].append(code)
    lines = [f"  {word.ljust(12)}  {' '.join(codes) or '-'}" for word, codes in by_word.items()]
    return [paint("rules", "bold", options.color), *lines, ""]


def _remarks(judged: Judged, options: Options) -> list[str]:
    rows = []
    if judged.run.shim:
        rows.append("changed for the rehearsal: " + "; ".join(judged.run.shim))
    if judged.run.truncated:
        rows.append("cut short on purpose: what needs a whole epoch or run was not looked at")
    missing = int(judged.run.plan.get("nproc_per_node", 0)) * int(judged.run.plan.get("nnodes", 0)) - len(
        judged.run.ranks
    )
    if missing > 0 and judged.run.plan.get("launcher") != "single":
        rows.append(f"{plural(missing, 'rank')} never reported: torch was not imported, or PYTHONPATH is not honoured")
    for fault in judged.run.faults[:5]:
        rows.append(
            f"fault of validate-ddp itself in {fault['where']}: {fault['message']} (the run is not changed by it)"
        )
    return [escape(row) for row in rows]


def _summary(judged: Judged, options: Options) -> str:
    run = judged.run
    where = f"in {run.seconds:.1f} s on {plural(len(run.ranks), 'rank')}"
    if not judged.findings:
        return paint(f"no findings {where}", "good" if not judged.failed else "bold", options.color)
    parts = [f"{number} {name}" if name == "info" else plural(number, name)
             for name, number in counts(judged.findings).items() if number]  # fmt: skip
    return f"{plural(len(judged.findings), 'finding')} ({', '.join(parts)}) {where}"


def as_json(judged: Judged) -> str:
    """One JSON object."""
    run, failure = judged.run, judged.failure
    document = {
        "schema": SCHEMA,
        "tool": {"name": "validate-ddp", "version": __version__},
        "plan": run.plan,
        "outcome": run.outcome,
        "seconds": run.seconds,
        "failure": None if failure is None else failure.__dict__,
        "positions": list(judged.positions),
        "findings": [
            _finding_as_json(finding, observation.ranks)
            for finding, observation in zip(judged.findings, judged.observations, strict=True)
        ],
        "facts": judged.facts,
        "rules": {code: {"name": name_of(code), "verdict": verdict.word} for code, verdict in judged.verdicts.items()},
        "faults": [{"where": each["where"], "message": each["message"]} for each in run.faults],
    }
    return json.dumps(document, indent=2, default=str) + "\n"


def _finding_as_json(finding: Finding, ranks: tuple[int, ...]) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "kinds": ["rehearsal"],
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "end": {"line": finding.end_line, "column": finding.end_column},
        "message": finding.message,
        "ranks": list(ranks),
        "evidence": [{"path": each.path, "line": each.span.line, "note": each.note} for each in finding.evidence],
    }
