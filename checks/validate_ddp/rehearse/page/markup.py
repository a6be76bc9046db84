"""Text made fit for HTML: everything is escaped, and what cannot be shown is written as an escape."""

from __future__ import annotations

import html

from validate_ddp.report.printable import escape


def text(value: str) -> str:
    """``value`` as the text or the quoted attribute of an element; its lines stay lines."""
    return "\n".join(html.escape(escape(line), quote=True) for line in value.split("\n"))


def element(name: str, value: str, kind: str = "") -> str:
    """An element with escaped text. name, kind: of ours, never of a script."""
    return f'<{name} class="{kind}">{text(value)}</{name}>' if kind else f"<{name}>{text(value)}</{name}>"
