"""Prints random blocks of the quantised types of GGUF, and the numbers that the package ``gguf`` unpacks from them.

    python tools/gguf_blocks.py > mini_vllm/models/gguf_blocks.json

Needs ``pip install gguf``. The tests compare our reader with the file, so they do not need the package.
"""

import json

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

#: Type → bytes of a block, and where it has numbers in half precision
BLOCKS = {"Q4_0": (18, [0]), "Q4_1": (20, [0, 2]), "Q5_0": (22, [0]), "Q5_1": (24, [0, 2]), "Q8_0": (34, [0]),
          "Q2_K": (84, [80, 82]), "Q3_K": (110, [108]), "Q4_K": (144, [0, 2]), "Q5_K": (176, [0, 2]),
          "Q6_K": (210, [208])}
NUM_BLOCKS = 2


def main() -> None:
    rng = np.random.default_rng(0)
    lines = []
    for name, (num_bytes, halves) in BLOCKS.items():
        blocks = rng.integers(0, 256, (NUM_BLOCKS, num_bytes), dtype=np.uint8)
        for at in halves:
            blocks[:, at:at + 2] = rng.normal(size=(NUM_BLOCKS, 1)).astype(np.float16).view(np.uint8)
        numbers = dequantize(blocks, GGMLQuantizationType[name]).astype(np.float32)
        texts = ", ".join(np.format_float_positional(number, trim="-") for number in numbers.ravel())
        lines.append(f'"{name}": {{"blocks": "{blocks.tobytes().hex()}", "numbers": [{texts}]}}')
    print("{" + ",\n".join(lines) + "}")
    json.loads("{" + ",".join(lines) + "}")


if __name__ == "__main__":
    main()
