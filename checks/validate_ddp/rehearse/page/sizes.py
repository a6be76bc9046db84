"""The page of one script as if on worlds of several sizes: the table, and what a rank holds and moves as bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from validate_ddp import __version__
from validate_ddp.rehearse import at_size, sizes
from validate_ddp.rehearse.outcome import Judged
from validate_ddp.rehearse.page.markup import element, page, text

_WIDTH, _HEIGHT, _TOP, _FOOT = 1000, 220, 20, 20
_COLOURS = ("--forward", "--collective", "--backward", "--once", "--stuck", "--accent", "--warning", "--quiet")


def as_html(judged: Sequence[Judged]) -> str:
    """The whole page."""
    title = f"{' '.join(judged[0].run.plan.get('script') or ('A script',))} on several sizes"
    columns = [f"{each.run.world_size:,}" for each in judged]
    told = [each.facts["at_size"] for each in judged]
    held = [dict(at_size.held(each)) if each is not None else {} for each in told]
    moved = [_moved(each) for each in told]
    body = f"<header><h1>{text(title)}</h1>{element('p', f'validate-ddp {__version__}', 'quiet')}</header>"
    body += _table(judged)
    body += "<ul>" + "".join(element("li", row) for row in sizes.found(judged)) + "</ul>"
    body += bars("Memory of a rank, at least, by ranks in the world", columns, held, at_size.in_words)
    body += bars("Moved by a rank's calls of a step, by ranks in the world", columns, moved, at_size.in_words)
    if any(each is not None and each["seconds"] is not None for each in told):
        times = [{"seconds": (each and each["seconds"]) or 0.0} for each in told]
        name = "Least time of a step's calls over these links, by ranks in the world"
        body += bars(name, columns, times, at_size.in_time)
    return page(title, body)


def _table(judged: Sequence[Judged]) -> str:
    head, *rows = sizes.rows(judged)
    cells = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    lines = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>{"".join(element("td", cell) for cell in row[1:])}</tr>'
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>'


def _moved(told: at_size.AtSize | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in told["traffic"] if told is not None else ():
        name = f"{each['op']} {at_size.where(each)}"
        found[name] = found.get(name, 0.0) + each["bytes"]
    return found


def bars(
    title: str, columns: Sequence[str], parts: Sequence[Mapping[str, float]], shown: Callable[[float], str]
) -> str:
    """A bar for each column, of its parts by name; ``shown`` makes words of a number. Nothing where there is none."""
    names = [name for name in dict.fromkeys(name for each in parts for name in each) if any(map(_of(name), parts))]
    most = max((sum(each.values()) for each in parts), default=0.0)
    if not names or most <= 0:
        return ""
    width = _WIDTH / len(columns)
    drawn = ""
    for at, (column, each) in enumerate(zip(columns, parts, strict=True)):
        left, below = at * width + 0.2 * width, float(_HEIGHT - _FOOT)
        for name in filter(each.get, names):
            height = (_HEIGHT - _FOOT - _TOP) * each[name] / most
            below -= height
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            told = text(f"{name}: {shown(each[name])}")
            drawn += (
                f'<rect style="fill: var({colour})" x="{left:.1f}" y="{below:.1f}" width="{0.6 * width:.1f}" '
                f'height="{height:.1f}"><title>{told}</title></rect>'
            )
        middle = f'x="{(at + 0.5) * width:.1f}" text-anchor="middle"'
        drawn += f'<text {middle} y="{below - 5:.1f}">{text(shown(sum(each.values())))}</text>'
        drawn += f'<text class="quiet" {middle} y="{_HEIGHT - 4}">{text(column)}</text>'
    legend = " ".join(
        f'<i style="background: var({_COLOURS[at % len(_COLOURS)]})"></i>{text(name)}' for at, name in enumerate(names)
    )
    label = text(f"{title}; the table above says the same in numbers")
    return (
        element("h3", title)
        + f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{drawn}</svg>'
        + (f'<p class="legend">{legend}</p>' if len(names) > 1 else "")
    )


def _of(name: str) -> Callable[[Mapping[str, float]], float]:
    return lambda each: each.get(name, 0.0)
