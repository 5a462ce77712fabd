"""The course as a site, made from the files of the repository: ``make site``.

    the repository ──▶ pages.py ──▶ stage.py ──▶ build/pages ──▶ Sphinx ──▶ build/site
                       what is a    its text,                  (extension.py)
                       page, where  links turned (links.py)

Only the front page (docs/site/index.md) is written for the site alone. Everything before Sphinx is plain text, so that
the test suites can check it without Sphinx.
"""
