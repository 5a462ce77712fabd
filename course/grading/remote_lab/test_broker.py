"""The sandboxes that the tests' process asks for: one for the file, and one for the lab's reference."""

import json
import socket
from types import SimpleNamespace

import pytest

from course.grading.remote_lab.broker import Broker, OwnSandboxes


class FakeSandbox:
    def __init__(self, whose, running):
        self.whose, self.running, self.pid = whose, running, len(whose)
        self.connection, self._other_end = socket.socketpair()
        running.append(whose)

    def cpu_s(self):
        return {"file": 1.5, "reference": 2.5}[self.whose]

    def printed(self):
        return f"printed by the {self.whose}"

    def end(self):
        self.running.remove(self.whose)
        self.connection.close()
        self._other_end.close()


class FakeSettings:
    """The settings for a file, or for the reference. The sandboxes that it starts are listed in ``running``."""

    def __init__(self, reference, running, whose="file"):
        self.lab, self.running, self.whose = SimpleNamespace(reference=reference), running, whose

    def of_reference(self):
        return FakeSettings(self.lab.reference, self.running, "reference")


@pytest.fixture
def brokers():
    """Return a list of brokers that end with the test."""
    started = []
    yield started
    for broker in started:
        broker.end()


@pytest.fixture
def make_asker(monkeypatch, brokers):
    """Return ``make(reference)``, which gives a function that asks the broker, and a list of what runs."""
    monkeypatch.setattr(OwnSandboxes, "start", lambda self: FakeSandbox(self._settings.whose, self._settings.running))

    def make(reference):
        running = []
        broker = Broker(FakeSettings(reference, running))
        brokers.append(broker)
        broker.theirs.settimeout(5)
        broker.theirs.recv(1 << 16)  # the key

        def ask(what):
            broker.theirs.sendall(json.dumps([1, what]).encode() + b"\n")
            broker.answer()
            return json.loads(broker.theirs.recv(1 << 16))[1]

        return ask, running

    return make


def test_file_and_reference_run_side_by_side(make_asker):
    ask, running = make_asker("course.faster_step.reference")
    assert ask("start file") == {"pid": 4} and ask("start reference") == {"pid": 9}
    assert running == ["file", "reference"]
    assert ask("cpu_s file") == {"cpu_s": 1.5} and ask("cpu_s reference") == {"cpu_s": 2.5}
    assert ask("printed reference") == {"text": "printed by the reference"}
    ask("end reference")
    assert running == ["file"] and ask("cpu_s reference") == {"cpu_s": 0.0}
    ask("start file")
    assert running == ["file"], "a new sandbox of the file replaces the old one"


def test_every_sandbox_ends_with_the_broker(make_asker, brokers):
    ask, running = make_asker("course.faster_step.reference")
    ask("start file")
    ask("start reference")
    brokers[0].end()
    assert not running


def test_a_lab_without_a_reference_has_no_second_sandbox(make_asker):
    ask, running = make_asker("")
    assert "no sandbox for 'reference'" in ask("start reference")["error"]
    assert not running
