"""``course serve``: the student's own pieces behind the server and its live page, until it is stopped."""

from __future__ import annotations

from course.lab.lab import LabError
from course.lab.parts import Pieces, Seat, build, choose
from course.own_engine.requirements import check_machine, check_model, check_server
from course.student.demo_commands import Showpieces
from course.student.run_command import show_whose

#: A pool that fits on the page at a glance; the page's sliders change it.
NUM_BLOCKS, BLOCK_SIZE = 128, 16


class OwnServer(Showpieces):
    """The server. Its pieces have passed their tests, so they run in this process."""

    def serve(self, model: str, port: int, draft: bool = False) -> int:
        """Serve the student's pieces. Raise LabError, before listening, if one of them does not fit or fails.

        With ``draft``, the student's drafter guesses tokens. Then the engine's loop is the reference's.
        """
        check_machine()
        check_server()
        check_model(model)
        from mini_vllm.arguments import NUM_SPECULATIVE_TOKENS
        from mini_vllm.engine import engine_of
        from mini_vllm.engine_config import EngineConfig
        from mini_vllm.server.serving import serve
        from mini_vllm.server.settings import ServerSettings
        pieces = choose(self.labs, self.passes, self.file_of)
        if draft:
            pieces = _drafting(pieces)
        show_whose(pieces, self.console)
        config = EngineConfig(model=model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE,
                              num_speculative_tokens=NUM_SPECULATIVE_TOKENS if draft else 0)
        with self._failing_is_told(pieces):
            parts = build(pieces.files, pieces.labs)
            engine_of(config, parts)
        settings = ServerSettings(models=(model,), port=port, engine=config, parts=parts)
        serve(settings, lambda address: self.console.print(
            f"\nOpen {address}/ to see your engine at work.\nIts API is at {address}/v1. Ctrl-C stops."))
        return 0


def _drafting(pieces: Pieces) -> Pieces:
    """Return the pieces without the student's engine, which does not draft. Raise LabError if there is no drafter."""
    if not any("drafter" in lab.parts for lab in pieces.labs):
        raise LabError("Your engine cannot draft yet: first pass the lab that fills the part “drafter”, lab 6.1.")
    return Pieces([Seat("engine", None, "lab 5.3 does not draft") if seat.slot == "engine" else seat
                   for seat in pieces.seats], pieces.files)
