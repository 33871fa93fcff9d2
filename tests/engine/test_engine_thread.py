"""The engine's thread and its inbox: order, bounds, the end."""

import threading

import pytest
from support.timing import PATIENCE

from draftwire.engine.thread import EngineThread
from draftwire.errors import ResourceExhausted


class Recorder:
    """A loop that remembers events and calls `on_event` at each."""

    def __init__(self, on_event=lambda event: None):
        self.events = []
        self.on_event = on_event
        self.stepped = threading.Event()

    def receive(self, event):
        self.events.append(event)
        self.on_event(event)

    def step(self, now):
        self.stepped.set()


def test_a_full_inbox_refuses_what_may_be_refused():
    """Beyond its capacity it takes only what ends something, and gives everything in order."""
    loop = Recorder()
    thread = EngineThread(lambda: loop, pytest.fail, capacity=2)
    thread.post(1)
    thread.post(2)
    with pytest.raises(ResourceExhausted, match="2 events"):
        thread.post(3)
    thread.post("end", always=True)
    assert thread.drain_into(loop)
    assert loop.events == [1, 2, "end"]


def test_a_flood_does_not_keep_the_loop_from_its_step():
    """Events that arrive while others are taken wait for the next time."""
    thread = EngineThread(lambda: loop, pytest.fail)
    loop = Recorder(on_event=lambda event: thread.post(event + 1))
    thread.post(0)
    assert thread.drain_into(loop)
    assert loop.events == [0]


def test_stop_in_mid_step_is_seen_by_the_outer_loop():
    """A request to stop that is found during a step ends the thread after it; what came before it was taken."""
    loop = Recorder()
    thread = EngineThread(lambda: loop, pytest.fail)
    thread.post(1)
    thread.stop()
    assert not thread.drain_into(loop)
    assert loop.events == [1]
    thread.start()
    assert thread.stop(PATIENCE)


def test_failure_is_reported_once():
    """What the loop raises ends the thread and reaches whoever runs it."""
    failed, errors = threading.Event(), []

    def fail(event):
        raise ValueError(event)

    def on_failure(error):
        errors.append(error)
        failed.set()

    thread = EngineThread(lambda: Recorder(fail), on_failure)
    thread.start()
    thread.post(1)
    assert failed.wait(PATIENCE)
    assert thread.stop(PATIENCE)
    assert [str(error) for error in errors] == ["1"]
