"""``mini-vllm serve``: the engine behind an HTTP API that OpenAI's clients can talk to.

    request ──▶ guard ──▶ access ──▶ route: protocol ──▶ respond ──▶ a model from the shelf ──▶ AsyncLLMEngine
                 Host,     key,       pydantic            whole answers     loaded on first use
                 Origin,   rate                           and streams
                 size

It needs the extra ``[serve]``. Nothing else of the package imports this room but the commands, and they call
``check_installed`` of ``extras.py`` first.
"""
