"""Writes what the catalogue says of the rules into the README's table and into docs/rules/, a page a rule.

python ci/documents.py            they are rewritten
python ci/documents.py --check    nothing is; exit code 1 where one is not current
"""

from __future__ import annotations

import sys
from pathlib import Path

from validate_ddp.catalogue import Rule, describe, every
from validate_ddp.report.explain import explain

ROOT = Path(__file__).resolve().parent.parent
README, PAGES = ROOT / "README.md", ROOT / "docs" / "rules"
HEAD = "| code | name | severity | fix |\n|---|---|---|---|\n"
MADE = "<!-- Made by ci/documents.py from the rule's own file. -->\n"


def table(rules: list[Rule]) -> str:
    """A row for each rule that is about distributed training, rather than about files or suppressions."""
    rows = [HEAD]
    for rule in rules:
        if not rule.code.startswith("DDP00"):
            name = f"[{rule.name}](docs/rules/{_file(rule)})"
            severities = ", ".join(rule.severities) + (" (rehearsal)" if "S" not in rule.evidence else "")
            rows.append(f"| {rule.code} | {name} | {severities} | {rule.fix.strip('-')} |\n")
    return "".join(rows)


def documents() -> dict[Path, str]:
    """Each file as it is to be."""
    rules = [describe(stub) for stub in every()]
    text = README.read_text(encoding="utf-8")
    before, head, rest = text.partition(HEAD)
    if not head:
        raise SystemExit(f"{README}: there is no table that begins with {HEAD.splitlines()[0]!r}")
    after = rest[rest.index("\n\n") + 1 :]
    pages = {PAGES / _file(rule): MADE + explain(rule) for rule in rules}
    return {README: before + table(rules) + after, **pages}


def _file(rule: Rule) -> str:
    return f"{rule.code}-{rule.name}.md"


def main() -> int:
    """0 where all is current, or was made so."""
    wanted = documents()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    left = [path for path in PAGES.glob("*.md") if path not in wanted]
    if "--check" in sys.argv[1:]:
        for path in sorted(stale + left):
            print(f"{path.relative_to(ROOT)}: is not what the rules say; run ci/documents.py")
        return int(bool(stale or left))
    PAGES.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    for path in left:
        path.unlink()
    print(f"{len(stale)} written, {len(left)} removed, {len(wanted)} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
