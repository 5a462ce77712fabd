"""The longest test first: with several workers, nobody waits for it at the end."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name != "test_the_readme_runs_from_top_to_bottom")
