"""Every pytest run in this project speaks of labs: --impl, the ``lab`` fixture, points."""

pytest_plugins = ["course.plugin"]
