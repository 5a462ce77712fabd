"""A page as HTML: one file, no scripts, nothing that is loaded, for light and dark mode, narrow and wide screens."""

from __future__ import annotations

from course.grading.export.escape import html_text
from course.grading.export.page import (
    Block,
    Heading,
    Items,
    Line,
    Page,
    Paragraph,
    Picture,
    Piece,
    Table,
    Verbatim,
)

#: The colours of the course's pictures. (``mini_vllm.pictures.palette`` also contains them, but imports MLX.)
LIGHT = {"paper": "#ffffff", "ink": "#1c1c1c", "faint": "#5f6368", "grid": "#e4e4e4", "box": "#f6f7f8",
         "bar": "#5989ea", "alarm": "#c5221f", "good": "#1e7d43", "note": "#f3ecd2"}
DARK = {"paper": "#16191d", "ink": "#eceff1", "faint": "#a9b0b7", "grid": "#30363d", "box": "#1f242a",
        "bar": "#5989ea", "alarm": "#ff8a80", "good": "#6fcf97", "note": "#3d3823"}


def _colours(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


STYLE = f"""
:root{{color-scheme:light dark;{_colours(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{_colours(DARK)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;padding:1.5rem 1rem 3rem;max-width:52rem;background:var(--paper);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}
h1{{font-size:1.6rem;line-height:1.2}}
h2{{font-size:1.25rem;margin:2.5rem 0 .5rem;padding-top:1rem;border-top:1px solid var(--grid)}}
h3{{font-size:1.05rem;margin:1.75rem 0 .25rem}}
p{{margin:.5rem 0}}
ul{{padding-left:1.25rem}}
pre{{margin:.25rem 0 1rem;padding:.6rem .8rem;background:var(--box);border-radius:6px;white-space:pre-wrap;
font:.85rem/1.45 ui-monospace,monospace}}
code{{font:.9em ui-monospace,monospace;background:var(--box);padding:.1em .3em;border-radius:4px}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse;margin:.75rem 0;overflow-wrap:normal}}
th,td{{padding:.3rem .9rem .3rem 0;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}}
th{{font-weight:600}}
.n{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
.note{{background:var(--note);padding:.5rem .8rem;border-radius:6px}}
.small{{color:var(--faint);font-size:.82rem}}
.title{{color:var(--faint);font-size:.85rem;margin:.25rem 0 0}}
.good{{color:var(--good)}}
.bad{{color:var(--alarm)}}
svg{{max-width:100%;height:auto}}
@media print{{body{{max-width:none}}}}
"""


def render(page: Page) -> str:
    title = html_text(page.title)
    body = "\n".join(_block(block) for block in page.blocks)
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
            """<meta http-equiv="Content-Security-Policy" content="default-src 'none';style-src 'unsafe-inline'">\n"""
            f'<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n'
            f'<h1>{title}</h1>\n{body}\n</body>\n</html>\n')


def _block(block: Block) -> str:
    match block:
        case Heading(level, line):
            return f"<h{level}>{_line(line)}</h{level}>"
        case Paragraph(line, kind):
            return f'<p class="{kind}">{_line(line)}</p>' if kind else f"<p>{_line(line)}</p>"
        case Items(lines):
            return f"<ul>{''.join(f'<li>{_line(line)}</li>' for line in lines)}</ul>"
        case Verbatim(text, title):
            head = f'<p class="title">{html_text(title)}</p>' if title else ""
            return f"{head}<pre>\n{html_text(text)}</pre>"
        case Table():
            return _table(block)
        case Picture(svg, _):
            return svg


def _table(table: Table) -> str:
    def cell(tag: str, column: int, inside: str) -> str:
        return f'<{tag}{" class=n" if column in table.numeric else ""}>{inside}</{tag}>'

    head = "".join(cell("th", column, html_text(text)) for column, text in enumerate(table.head))
    rows = "".join(f"<tr>{''.join(cell('td', column, _line(line)) for column, line in enumerate(row))}</tr>"
                   for row in table.rows)
    return (f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>')


def _line(line: Line) -> str:
    return "".join(_piece(piece) for piece in line)


def _piece(piece: Piece) -> str:
    if isinstance(piece, str):
        return html_text(piece)
    tag = piece.look.value
    inside = html_text(piece.text)
    return f'<span class="{tag}">{inside}</span>' if tag in ("good", "bad") else f"<{tag}>{inside}</{tag}>"
