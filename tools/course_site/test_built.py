"""Test the check of the built site on sites of two pages."""

import pytest

from course_site.built import problems_of


@pytest.fixture
def site(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/page.html").write_text('<h1 id="top">Page</h1><a name="old">x</a>')
    (tmp_path / "style.css").write_text("")
    return tmp_path


@pytest.mark.parametrize("html", [
    '<a href="inner/page.html">x</a>',
    '<a href="inner/page.html#top">x</a><a href="inner/page.html#old">x</a>',
    '<a href="#">x</a><p id="here"><a href="#here">x</a>',
    '<a href="inner/../index.html">x</a><a href=".">x</a>',
    '<link rel="stylesheet" href="style.css?v=1">',
    '<img src="data:image/svg+xml;base64,AAAA">',
    '<a href="https://example.org/a#b">x</a><a href="mailto:a@example.org">x</a>',
    "<pre>&lt;a href='none.html'&gt;</pre>",
])
def test_what_leads_somewhere_is_no_problem(site, html):
    (site / "index.html").write_text(html)
    assert problems_of(site) == []


@pytest.mark.parametrize("html, problem", [
    ('<a href="none.html">x</a>', "none.html: there is no such file on the site"),
    ('<img src="none.svg">', "none.svg: there is no such file on the site"),
    ('<script src="none.js"></script>', "none.js: there is no such file on the site"),
    ('<a href="inner/page.html#end">x</a>', "inner/page.html#end: that page has no place #end"),
    ('<a href="#nowhere">x</a>', "#nowhere: that page has no place #nowhere"),
    ('<a href="../outside.html">x</a>', "../outside.html: there is no such file on the site"),
    ('<a href="/inner/page.html">x</a>', "/inner/page.html: there is no such file on the site"),
    ('<a href="source:a.py">x</a>', "source:a.py: an external link must have the form https://host/…"),
    ('<a href="http://example.org">x</a>', "http://example.org: an external link must have the form https://host/…"),
    ('<a href="https://">x</a>', "https://: an external link must have the form https://host/…"),
    ('<script src="https://x.org/a.js"></script>',
     "https://x.org/a.js: the page would load this from another site, but it must work without a network"),
    ('<a href="https://[x">x</a>', "https://[x: Invalid IPv6 URL"),
])
def test_what_leads_nowhere_is_listed(site, html, problem):
    (site / "index.html").write_text(html + html)
    assert problems_of(site) == [f"index.html: {problem}"]
