"""The frame of a report: one HTML page, its style within, readable in light and dark. Pure."""

import html

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #767676; --grid: #dddddd; --page: #ffffff }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #9a9a9a; --grid: #3a3a3a; --page: #161616 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
       max-width: 1180px; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 }
td, th { padding: .15rem .8rem .15rem 0; text-align: right; border-bottom: 1px solid var(--grid) }
td:first-child, th:first-child { text-align: left }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 1rem }
svg { width: 100%; height: auto } svg.forest { max-width: 860px; display: block }
.title { font-weight: 600; font-size: 13px; fill: var(--ink) }
.label { font-size: 11px; fill: var(--soft) } .grid { stroke: var(--grid); stroke-width: 1 }
.line { fill: none; stroke-width: 1.6 } .key { stroke-width: 3 }
.wait { fill: #e69f00; opacity: .55 } .decode { fill: #0072b2 } .bad { fill: #d55e00 }
.warning { border-left: 4px solid #d55e00; padding-left: .6rem } .soft { color: var(--soft) }
"""


def render_page(title: str, body: str) -> str:
    """A whole page; `title` is escaped, `body` is HTML."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )
