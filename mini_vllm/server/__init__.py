"""``mini-vllm serve``: the engine behind an HTTP API that OpenAI's clients can talk to.

    request ──▶ guard ──▶ access ──▶ route: protocol ──▶ response ──▶ a model from the shelf ──▶ AsyncLLMEngine
                 Host,     key,       pydantic            whole answers     loaded on first use
                 Origin    rate,                          and streams
                           size

It needs the extra ``[serve]``. Only the commands import this package, and they call ``check_installed`` of
``checks.py`` first.
"""
