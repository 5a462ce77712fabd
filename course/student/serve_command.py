"""``course serve``: the student's own pieces behind the server and its live page, until it is stopped."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from course.lab import base_labs
from course.lab.lab import Lab, LabError
from course.lab.parts import Pieces, Seat, choose
from course.own_engine.requirements import check_machine, check_model, check_server
from course.student.demo_commands import Showpieces
from course.student.run_command import show_whose

if TYPE_CHECKING:
    from mini_vllm.server.settings import ServerSettings

#: A pool that fits on the page at a glance; the page's sliders change it.
NUM_BLOCKS, BLOCK_SIZE = 128, 16


class OwnServer(Showpieces):
    """The server. Its pieces have passed their tests, so they run in this process."""

    def serve(self, model: str, port: int, draft: bool = False, num_replicas: int = 0) -> int:
        """Serve the student's pieces. Raise LabError, before listening, if one of them does not fit or fails.

        With ``draft``, the student's drafter guesses tokens. Then the engine's loop is the reference's. With
        ``num_replicas``, this many servers have the pieces, and the student's router chooses one for each request.
        """
        check_machine()
        check_server()
        check_model(model)
        from course.own_engine.build_parts import build
        from mini_vllm.checks import whole_number
        from mini_vllm.engine import engine_of
        from mini_vllm.engine_config import EngineConfig
        from mini_vllm.server.replicas.serving import MAX_REPLICAS
        from mini_vllm.server.serving import serve
        from mini_vllm.server.settings import ServerSettings
        from mini_vllm.speculation import NUM_SPECULATIVE_TOKENS
        try:
            whole_number("--replicas", num_replicas, 0, MAX_REPLICAS)
        except ValueError as error:
            raise LabError(str(error)) from None
        pieces = choose(self.labs, self.passes, self.file_of)
        if draft:
            pieces = _drafting(pieces)
        router = self._router_lab() if num_replicas else None
        of_router = [Seat("router", router, "" if router else "until lab 6.3 passes")] if num_replicas else []
        show_whose(Pieces([*pieces.seats, *of_router], pieces.files), self.console)
        config = EngineConfig(model=model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE,
                              num_speculative_tokens=NUM_SPECULATIVE_TOKENS if draft else 0)
        with self._failing_is_told(pieces):
            parts = build(pieces.files, pieces.labs)
            engine_of(config, parts)
        settings = ServerSettings(models=(model,), port=port, engine=config, parts=parts)
        if num_replicas:
            self._serve_replicas(settings, num_replicas, pieces, router)
        else:
            serve(settings, self._say_where)
        return 0

    def _router_lab(self) -> Lab | None:
        """Return the lab of the student's router; None if it does not pass."""
        return next((lab for lab in self.labs if lab.router and self.passes(lab)), None)

    def _serve_replicas(self, settings: ServerSettings, num_replicas: int, pieces: Pieces, router: Lab | None) -> None:
        from course.own_engine.build_parts import build_in
        from mini_vllm.router import CacheAwareRouter
        from mini_vllm.server.replicas.serving import make_router, serve_replicas
        router_class: Any = CacheAwareRouter
        if router is not None:
            files = {router.number: self.file_of(router)}
            with self._failing_is_told(Pieces([Seat("router", router)], files)), base_labs.using(files):
                router_class = getattr(base_labs.load_base(router.number), router.router)
                make_router(settings.engine, router_class)
        root = str(pieces.labs[0].root) if pieces.labs else ""
        own_files = {number: str(file.resolve()) for number, file in pieces.files.items()}
        make_parts = partial(build_in, root, own_files, [lab.number for lab in pieces.labs])
        serve_replicas(replace(settings, parts=None), num_replicas, (), make_parts, self._say_where,
                       router_class=router_class)

    def _say_where(self, address: str) -> None:
        self.console.print(f"\nOpen {address}/ to see your engine at work.\nIts API is at {address}/v1. Ctrl-C stops.")


def _drafting(pieces: Pieces) -> Pieces:
    """Return the pieces without the student's engine, which does not draft. Raise LabError if there is no drafter."""
    if not any("drafter" in lab.parts for lab in pieces.labs):
        raise LabError("Your engine cannot draft yet: first pass the lab that fills the part “drafter”, lab 6.1.")
    return Pieces([Seat("engine", None, "lab 5.3 does not draft") if seat.slot == "engine" else seat
                   for seat in pieces.seats], pieces.files)
