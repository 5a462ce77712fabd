"""``python -m mini_vllm.cli`` is ``mini-vllm``."""

import sys

from mini_vllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
