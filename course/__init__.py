"""The classroom: labs, the pytest plugin that grades them, and the ``course`` command."""
