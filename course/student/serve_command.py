"""``course serve``: the student's own pieces behind the server and its live page, until it is stopped."""

from __future__ import annotations

from course.lab.parts import build, choose
from course.own_engine.requirements import check_machine, check_model, check_server
from course.student.demo_commands import Showpieces
from course.student.run_command import show_whose

#: A pool that fits on the page at a glance; the page's sliders change it.
NUM_BLOCKS, BLOCK_SIZE = 128, 16


class OwnServer(Showpieces):
    """The server. Its pieces have passed their tests, so they run in this process."""

    def serve(self, model: str, port: int) -> int:
        """Serve the student's pieces. Raise LabError, before listening, if one of them does not fit or fails."""
        check_machine()
        check_server()
        check_model(model)
        from mini_vllm.engine import engine_of
        from mini_vllm.engine_config import EngineConfig
        from mini_vllm.server.serving import serve
        from mini_vllm.server.settings import ServerSettings
        pieces = choose(self.labs, self.passes, self.file_of)
        show_whose(pieces, self.console)
        config = EngineConfig(model=model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
        with self._failing_is_told(pieces):
            parts = build(pieces.files, pieces.labs)
            engine_of(config, parts)
        settings = ServerSettings(models=(model,), port=port, engine=config, parts=parts)
        serve(settings, lambda address: self.console.print(
            f"\nOpen {address}/ to see your engine at work.\nIts API is at {address}/v1. Ctrl-C stops."))
        return 0
