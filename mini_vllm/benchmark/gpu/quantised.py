"""A model whose weights stay packed, 4 bits each: by mlx-lm's own recipe, read by both."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path

from mini_vllm.backend import mx, nn
from mini_vllm.models.export import export_folder
from mini_vllm.models.loader import LoadedModel, load
from mini_vllm.models.random_model import write_byte_tokenizer

BITS, GROUP_SIZE = 4, 64


def quantise(loaded: LoadedModel) -> tuple[LoadedModel, nn.Module]:
    """Quantise a model. Return ours and mlx-lm's. This needs mlx-lm."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model, quantize_model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_folder(loaded, folder)
        write_byte_tokenizer(folder)
        peer, config = load_model(folder)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it did
            peer, config = quantize_model(peer, config, GROUP_SIZE, BITS)
        parameters = dict(tree_flatten(peer.parameters()))
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        mx.save_safetensors(str(folder / "model.safetensors"), parameters)
        (folder / "config.json").write_text(json.dumps(config))
        return load(folder), peer
