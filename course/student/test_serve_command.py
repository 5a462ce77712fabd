"""``course serve``: the server gets the student's pieces; a piece that does not fit is reported before it starts."""

import io
import pickle
from pathlib import Path

import pytest
from rich.console import Console

from course.cli import make_parser
from course.lab.lab import LabError, discover
from course.student.serve_command import OwnServer
from mini_vllm.block_pool import BlockPool
from mini_vllm.engine_config import EngineParts
from mini_vllm.router import CacheAwareRouter
from mini_vllm.scheduler import Scheduler


@pytest.fixture
def served(monkeypatch):
    """Return the settings that the server would have been started with."""
    settings = []
    monkeypatch.setattr("mini_vllm.server.serving.serve", lambda given, say: (settings.append(given), say("http://x:1")))
    return settings


def own(*numbers, **files):
    console = Console(file=io.StringIO(), width=200, highlight=False, soft_wrap=True)
    return OwnServer(discover(), console, lambda lab: lab.number in numbers,
                     lambda lab: files.get(f"lab_{lab.number.replace('.', '_')}", lab.solution))


def test_the_pieces_that_pass_are_served_and_it_says_where(served):
    server = own("2.1", "4.1")
    assert server.serve("tiny-tales", 8123) == 0
    (settings,) = served
    assert settings.port == 8123 and settings.models == ("tiny-tales",) and settings.host == "127.0.0.1"
    pool = settings.parts.block_pool
    assert pool is not BlockPool and "lab-01" in pool.touch.__code__.co_filename
    shown = server.console.file.getvalue()
    assert "yours, lab 2.1" in shown and "Open http://x:1/ to see your engine" in shown


def test_a_drafter_of_ones_own_drafts_in_the_references_loop(served):
    server = own("5.3", "6.1")
    assert server.serve("tiny-tales", 8123, draft=True) == 0
    (settings,) = served
    assert settings.engine.num_speculative_tokens > 0
    assert settings.parts.engine is None and "lab-01-speculation" in settings.parts.drafter.propose.__code__.co_filename
    assert "lab 5.3 does not draft" in server.console.file.getvalue()


def test_without_a_drafter_of_ones_own_nothing_is_served(served):
    with pytest.raises(LabError, match="first pass the lab that fills the part “drafter”, lab 6.1"):
        own("5.3").serve("tiny-tales", 8123, draft=True)
    assert not served


def test_a_piece_that_breaks_is_told_before_anybody_is_served(served, tmp_path: Path):
    broken = tmp_path / "broken.py"
    solution = next(lab for lab in discover() if lab.number == "2.1").solution.read_text(encoding="utf-8")
    broken.write_text(f"{solution}\nraise ArithmeticError('oh')\n", encoding="utf-8")
    with pytest.raises(LabError, match="ArithmeticError: oh"):
        own("2.1", lab_2_1=broken).serve("tiny-tales", 8123)
    assert not served


def test_the_command_is_there():
    options = make_parser().parse_args(["serve", "--port", "9"])
    assert options.command == "serve" and options.port == 9 and options.model == "tiny-tales"


def test_packages_that_are_missing_are_all_named_at_once(served, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LabError, match=r"uvicorn, prometheus_client, llguidance: pip install -e \"\.\[serve\]\""):
        own().serve("tiny-tales", 0)
    assert not served


@pytest.fixture
def fronts(monkeypatch):
    """Return what the front of replicas would have been started with, and the parts that a replica would load."""
    started = []

    def serve_replicas(settings, num_replicas, workers, make_parts, say_where, router_class):
        started.append((settings, num_replicas, pickle.loads(pickle.dumps(make_parts))(), router_class))
        say_where("http://x:1")

    monkeypatch.setattr("mini_vllm.server.replicas.serving.serve_replicas", serve_replicas)
    return started


def test_replicas_have_the_pieces_and_the_front_has_the_router(served, fronts):
    server = own("2.1", "6.3")
    assert server.serve("tiny-tales", 8123, num_replicas=2) == 0
    ((settings, num_replicas, parts, router_class),) = fronts
    assert not served and num_replicas == 2 and settings.port == 8123 and settings.parts is None
    assert "lab-01" in parts.block_pool.touch.__code__.co_filename and parts.scheduler is Scheduler
    assert "lab-03-router" in router_class.route.__code__.co_filename
    shown = server.console.file.getvalue()
    assert "yours, lab 2.1" in shown and "yours, lab 6.3" in shown and "Open http://x:1/" in shown


def test_without_a_router_of_ones_own_the_references_routes(served, fronts):
    server = own()
    assert server.serve("tiny-tales", 8123, num_replicas=2) == 0
    ((_, _, parts, router_class),) = fronts
    assert router_class is CacheAwareRouter and parts == EngineParts()
    assert "until lab 6.3 passes" in server.console.file.getvalue()


def test_a_router_that_breaks_is_told_before_anybody_is_served(served, fronts, tmp_path: Path):
    broken = tmp_path / "broken.py"
    broken.write_text("class CacheAwareRouter:\n    def __init__(self, **_):\n        raise ArithmeticError('oh')\n")
    with pytest.raises(LabError, match="ArithmeticError: oh"):
        own("6.3", lab_6_3=broken).serve("tiny-tales", 8123, num_replicas=2)
    assert not served and not fronts


@pytest.mark.parametrize("number", [-1, 65])
def test_an_impossible_number_of_replicas_is_refused(served, fronts, number):
    server = own("2.1")
    with pytest.raises(LabError, match=f"--replicas is {number}, must be a whole number from 0 to 64"):
        server.serve("tiny-tales", 8123, num_replicas=number)
    assert not served and not fronts and not server.console.file.getvalue()
