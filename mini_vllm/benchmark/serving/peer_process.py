"""``python -m mini_vllm.benchmark.serving.peer_process``: mlx-lm's server, in a process with the same BLAS as ours."""

from __future__ import annotations

import mini_vllm.backend  # noqa: F401  # loads the BLAS, before mlx-lm imports MLX

if __name__ == "__main__":
    from mlx_lm.server import main
    main()
