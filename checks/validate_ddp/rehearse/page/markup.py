"""Text made fit for HTML: everything is escaped, and what cannot be shown is written as an escape."""

from __future__ import annotations

import html

from validate_ddp.rehearse.page.style import STYLE
from validate_ddp.report.printable import escape

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(title: str, body: str) -> str:
    """The whole file. body: what is escaped already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{STYLE}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def text(value: str) -> str:
    """``value`` as the text or the quoted attribute of an element; its lines stay lines."""
    return "\n".join(html.escape(escape(line), quote=True) for line in value.split("\n"))


def element(name: str, value: str, kind: str = "") -> str:
    """An element with escaped text. name, kind: of ours, never of a script."""
    return f'<{name} class="{kind}">{text(value)}</{name}>' if kind else f"<{name}>{text(value)}</{name}>"
