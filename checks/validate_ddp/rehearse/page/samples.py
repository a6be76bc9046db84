"""The data on the page: which rank read which samples in the first epoch; and steps after which replicas differed."""

from __future__ import annotations

from collections import Counter

from validate_ddp.record.run import Run
from validate_ddp.rehearse.outcome import Judged
from validate_ddp.rehearse.page.markup import element, text
from validate_ddp.rehearse.summary import first_epoch

_BINS, _WIDTH, _LEFT, _LANE = 240, 1000, 70, 16


def coverage(run: Run) -> str:
    """A strip for each rank, and one for all: read by nobody, once, or more than once."""
    epoch = first_epoch(run)
    if epoch is None or not epoch[0]:
        return ""
    length, read, _ = epoch
    bins = min(_BINS, length)
    rows = [
        _strip(f"rank {rank}", [Counter(read[rank])], number, length, bins) for number, rank in enumerate(sorted(read))
    ]
    together = Counter(index for indices in read.values() for index in indices)
    rows.append(_strip("all", [together], len(rows), length, bins))
    height = len(rows) * (_LANE + 6) + 16
    label = (
        f"Samples of the first epoch by index: {len(together)} of {length} read, "
        f"{sum(count > 1 for count in together.values())} more than once"
    )
    return (
        "<h3>Samples read in the first epoch, by index</h3>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{text(label)}">{"".join(rows)}'
        f'<text class="quiet" x="{_LEFT}" y="{height - 2}">0</text>'
        f'<text class="quiet" x="{_WIDTH}" y="{height - 2}" text-anchor="end">{length - 1}</text></svg>'
        '<p class="legend"><i style="background: var(--once)"></i>read once '
        '<i style="background: var(--often)"></i>more than once <i style="background: var(--never)"></i>by nobody</p>'
    )


def _strip(name: str, counts: list[Counter[int]], lane: int, length: int, bins: int) -> str:
    """One lane; a bin of several samples is as dark as its share of them, and red where one of them is repeated."""
    top = lane * (_LANE + 6)
    width = (_WIDTH - _LEFT) / bins
    cells = [f'<rect class="never" x="{_LEFT}" y="{top}" width="{_WIDTH - _LEFT}" height="{_LANE}"/>']
    hits, most = Counter[int](), Counter[int]()
    for index, count in counts[0].items():
        if 0 <= index < length:
            at = ((index + 1) * bins - 1) // length
            hits[at] += 1
            most[at] = max(most[at], count)
    for at, hit in sorted(hits.items()):
        inside = (at + 1) * length // bins - at * length // bins
        kind = "often" if most[at] > 1 else "once"
        cells.append(
            f'<rect class="{kind}" x="{_LEFT + at * width:.1f}" y="{top}" width="{width + 0.1:.1f}" '
            f'height="{_LANE}" opacity="{0.35 + 0.65 * hit / inside:.2f}"/>'
        )
    return f'<text x="0" y="{top + _LANE - 4}">{name}</text>{"".join(cells)}'


def drift(judged: Judged) -> str:
    """How many parameters differed between ranks after each step, where any did."""
    replicas = judged.facts["replicas"]
    if not replicas or replicas["equal"]:
        return ""
    apart = replicas["parameters_apart"]
    shown = apart[:_BINS]
    most = max(shown) or 1
    width = (_WIDTH - _LEFT) / len(shown)
    bars = "".join(
        f'<rect class="often" x="{_LEFT + at * width:.1f}" y="{60 - 50 * count / most:.1f}" '
        f'width="{max(width - 1, 0.8):.1f}" height="{50 * count / most:.1f}"/>'
        for at, count in enumerate(shown)
    )
    label = f"Parameters that differ between ranks after each of {len(shown)} steps, at most {most}"
    return element("h3", "Parameters that differ between ranks, by step") + (
        f'<svg viewBox="0 0 {_WIDTH} 80" role="img" aria-label="{label}"><text x="0" y="20">{most}</text>'
        f'<text x="0" y="60">0</text>{bars}<text class="quiet" x="{_LEFT}" y="76">step 1</text>'
        f'<text class="quiet" x="{_WIDTH}" y="76" text-anchor="end">step {len(shown)}</text></svg>'
    )
