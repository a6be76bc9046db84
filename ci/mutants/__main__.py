"""Plants defects in the correct scripts and scores the checker, beside a validator that greps for words.

Exit code 0 if at least 95 % of the mutants of present rules are killed and no correct script is accused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ci.mutants import table
from ci.mutants.checking import rules, run_checker
from ci.mutants.grepping import run_grep
from ci.mutants.scoring import Verdict, accusations, verdict
from ci.mutants.script import Script, correct_scripts

ENOUGH = 0.95


def main() -> int:
    """Prints the tables; the exit code says whether it was enough."""
    options = _options()
    scripts = [script for script in correct_scripts() if not options.script or script.name in options.script]
    present = rules()
    accused = [(script, said) for script in scripts for said in accusations(run_checker, script)]
    ours: list[Verdict] = []
    baseline: list[Verdict] = []
    waiting: dict[str, int] = {}
    for script in scripts:
        for number, mutant in enumerate(script.mutants):
            if options.select and mutant.code not in options.select:
                continue
            if options.write:
                _write(options.write, script, number, mutant.code, mutant.texts)
            if mutant.code not in present:
                waiting[mutant.code] = waiting.get(mutant.code, 0) + 1
                continue
            severe = set(present[mutant.code]) != {"info"}
            ours.append(verdict(run_checker, script, mutant, severe))
            baseline.append(verdict(run_grep, script, mutant, severe, by_line=False))
    _print(ours, baseline, waiting)
    print(f"\n{len(scripts)} correct scripts, {len({script.name for script, _ in accused})} accused by the checker")
    for script, said in accused:
        print(f"  {script.name}/{said.path}:{said.line}: {said.severity} {said.code}")
    false = {script.name: sorted({said.code for said in accusations(run_grep, script)}) for script in scripts}
    print(f"the grep accuses {sum(bool(said) for said in false.values())}: ", end="")
    print("; ".join(f"{name} {' '.join(said)}" for name, said in false.items() if said))
    share = table.killed(ours) / len(ours) if ours else 1.0
    print(f"killed {share:.1%}, the grep {table.killed(baseline) / max(1, len(baseline)):.1%} (at least {ENOUGH:.0%})")
    return 0 if share >= ENOUGH and not accused else 1


def _print(ours: list[Verdict], baseline: list[Verdict], waiting: dict[str, int]) -> None:
    print(table.by(ours, lambda one: one.mutant.code, baseline, "rule"))
    for code, count in sorted(waiting.items()):
        print(f"{code:<22}{count:>8}  no rule yet")
    print()
    print(table.by(ours, lambda one: one.script.name, baseline, "script"))
    for title, lines in (("survivors", table.survivors(ours)), ("findings beside the point", table.extras(ours))):
        print(f"\n{title}: {len(lines)}")
        for line in lines:
            print(f"  {line}")


def _write(folder: Path, script: Script, number: int, code: str, texts: dict[str, str]) -> None:
    target = folder / f"{script.name}-{number:03d}-{code}"
    target.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        (target / path).write_text(text, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ci.mutants", description=__doc__)
    parser.add_argument("--select", nargs="*", metavar="CODE", help="only the mutants of these rules")
    parser.add_argument("--script", nargs="*", metavar="NAME", help="only these correct scripts")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="leave each mutant in a folder of its own")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
