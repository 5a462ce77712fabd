"""Runs in another interpreter, which has transformers 5 and torch: writes random weights and computes logits.

Reads one JSON object per line: a folder with a config.json, token ids, a seed, and whether to store an output matrix
that the config calls tied. Writes model.safetensors, as transformers understands the config, and logits.npy into the
folder. Answers with one line: "" or the error.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, logging


def answer(folder: Path, token_ids: list[int], seed: int, has_own_head: bool) -> None:
    write_weights(folder, seed, has_own_head)
    model, loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                         output_loading_info=True)
    wrong = {name: sorted(found) for name, found in loaded.items() if found}
    if wrong:
        raise ValueError(f"not all weights were loaded: {wrong}")
    with torch.no_grad():
        np.save(folder / "logits.npy", model(torch.tensor([token_ids])).logits[0].numpy())


def write_weights(folder: Path, seed: int, has_own_head: bool) -> None:
    """Write weights so large that every detail of a network shows in its logits."""
    random = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    weights = {}
    for name, array in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings and not has_own_head:
            continue
        if array.ndim > 1:
            weights[name] = (torch.rand(array.shape, generator=random) * 6 - 3) * array.shape[-1] ** -0.5
        else:
            weights[name] = torch.randn(array.shape, generator=random) * 0.1 + (1.0 if "norm" in name else 0.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    answers, sys.stdout = sys.stdout, sys.stderr  # only answers go to the pipe
    for line in sys.stdin:
        error = ""
        try:
            given = json.loads(line)
            answer(Path(given["folder"]), given["token_ids"], given["seed"], given["has_own_head"])
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        print(json.dumps(error), file=answers, flush=True)


if __name__ == "__main__":
    main()
