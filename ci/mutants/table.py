"""The result as text: by rule, by script, survivors with their places."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ci.mutants.scoring import Verdict


def by(verdicts: list[Verdict], key: Callable[[Verdict], str], baseline: list[Verdict], title: str) -> str:
    """One line for each value of the key: planted, killed, of those by an info, extra findings, killed by grep."""
    lines = [f"{title:<22}{'planted':>8}{'killed':>8}{'advice':>8}{'extra':>7}{'grep':>7}"]
    for value in sorted({key(one) for one in verdicts}):
        lines.append(_line(value, [v for v in verdicts if key(v) == value], [v for v in baseline if key(v) == value]))
    lines.append(_line("all", verdicts, baseline))
    return "\n".join(lines)


def _line(name: str, verdicts: list[Verdict], baseline: list[Verdict]) -> str:
    extra = sum(bool(one.extra) for one in verdicts)
    advice = sum(one.advice for one in verdicts)
    return f"{name:<22}{len(verdicts):>8}{killed(verdicts):>8}{advice:>8}{extra:>7}{killed(baseline):>7}"


def killed(verdicts: Iterable[Verdict]) -> int:
    return sum(one.outcome == "killed" for one in verdicts)


def survivors(verdicts: list[Verdict]) -> list[str]:
    """A line for each mutant that was not killed: the first place where a finding was expected, and what it is."""
    lines = []
    for one in verdicts:
        if one.outcome != "killed":
            path, line = min(one.mutant.expected)
            lines.append(f"{one.script.name}/{path}:{line}: {one.mutant.code} {one.mutant.what} ({one.outcome})")
    return lines


def extras(verdicts: list[Verdict]) -> list[str]:
    """A line for each finding that is not true of its mutant."""
    return [
        f"{one.script.name}/{said.path}:{said.line}: {said.severity} {said.code} on {one.mutant.code} {one.mutant.what}"
        for one in verdicts
        for said in one.extra
    ]
