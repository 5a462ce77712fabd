"""Files of parts for ``--parts``."""

import pytest

from mini_vllm import attention
from mini_vllm.block_pool import BlockPool
from mini_vllm.cli import main
from mini_vllm.cli.parts_file import load_parts
from mini_vllm.engine_config import EngineParts
from mini_vllm.scheduler import Scheduler


def test_a_file_may_say_its_parts(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from mini_vllm.attention import paged_attention\nfrom mini_vllm.engine_config import EngineParts\n"
                    "parts = EngineParts(attention=paged_attention)\n")
    assert load_parts(path) == EngineParts(attention=attention.paged_attention)


def test_a_file_may_just_have_classes_of_its_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from mini_vllm.block_pool import BlockPool as Reference\n"
                    "from mini_vllm.scheduler import Scheduler\n\nclass BlockPool(Reference):\n    pass\n")
    parts = load_parts(path)
    assert parts.block_pool.__name__ == "BlockPool" and parts.block_pool is not BlockPool
    assert parts.scheduler is Scheduler, "what the file only imports is not its own"


@pytest.mark.parametrize("text, complaint", [
    ("x = 1\n", r"has no parts: it must define parts = EngineParts\(...\), or one of BlockPool, "),
    ("parts = 3\n", "parts is a int, must be an EngineParts"),
    ("1 / 0\n", "cannot be run: ZeroDivisionError: division by zero"),
    ("def\n", "cannot be run: SyntaxError"),
])
def test_a_file_without_parts_is_refused(tmp_path, text, complaint):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load_parts(path)


def test_parts_that_the_engine_cannot_use_are_an_error_of_one_line(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("class BlockPool:\n    def __init__(self, num_blocks):\n        pass\n")
    assert main(["generate", "A fox", "--parts", str(path)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "mine.py: the engine cannot use these parts: " in said and "course.engine_parts" in said
