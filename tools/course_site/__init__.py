"""The course as a site, made from the files of the repository: ``make site``.

    the repository ──▶ pages.py, api.py ──▶ stage.py ──▶ build/pages ──▶ Sphinx ──▶ build/site ──▶ built.py
                       what is a page,      its text,                  (extension.py)             do all links
                       and where            links turned                                          lead somewhere?

Nothing is written for the site alone but its front page (docs/site/index.md). Everything up to Sphinx is plain text, so
that the suites check it without Sphinx.
"""
