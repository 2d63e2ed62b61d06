"""HTML pages that need neither a network nor scripts: what they share."""

from __future__ import annotations

import html

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --page: #ffffff; --faint: #5b6470; --line: #d5d9de; --card: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --page: #15181c; --faint: #a0a8b2; --line: #3a4149; --card: #1f242a; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; color: var(--ink); background: var(--page);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; }
p { margin: 0.4rem 0; }
.faint { color: var(--faint); }
.wide { overflow-x: auto; }
summary { cursor: pointer; margin: 0.5rem 0; }
"""


def document(title: str, body: str, style: str) -> str:
    """Return a page that is light or dark as its reader's browser is; `style` are rules besides those that all pages have."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
