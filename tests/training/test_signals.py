"""Signals of any kind: when their handlers run, what a time-out leaves, several at once, handlers that callbacks set."""

import os
import signal
import threading
import time

import pytest

from numbanet import Net
from numbanet.estimators import supervised
from numbanet.training.run import Run
from numbanet_kernels.runtime import interrupt
from tests.training.networks import SMALL, X_TEST, X, Y, same, state

pytestmark = pytest.mark.usefixtures("interruptible")


def test_a_signal_that_comes_as_soon_as_the_handler_stands_is_not_lost(monkeypatch):
    class Signals:
        SIGINT, default_int_handler, getsignal = signal.SIGINT, signal.default_int_handler, signal.getsignal

        @staticmethod
        def signal(number, handler):
            signal.signal(number, handler)
            if handler is not signal.default_int_handler:
                signal.raise_signal(number)

    monkeypatch.setattr(interrupt, "signal", Signals)
    done = False
    with pytest.raises(KeyboardInterrupt), interrupt.deferred:
        done = True
    assert done


class TimeOut(Exception):
    pass


@pytest.fixture
def time_out():
    """Sends a signal whose handler raises TimeOut."""

    def raise_it(number, frame):
        raise TimeOut

    before = signal.signal(signal.SIGTERM, raise_it)
    yield lambda *ignored: signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", ["fit", "partial_fit"])
def test_a_time_out_leaves_the_net_as_it_was(name, time_out, monkeypatch):
    net = Net(**{**SMALL, "epochs": 2}).fit(X, Y)
    before, history = state(net), list(net.history_)

    monkeypatch.setattr(Run, "updated", time_out)
    with pytest.raises(TimeOut):
        getattr(net, name)(X, Y)
    assert same(state(net), before) and net.history_ == history and net.n_iter_ == 2
    monkeypatch.undo()
    assert same(state(net.partial_fit(X, Y)), state(Net(**{**SMALL, "epochs": 2}).fit(X, Y).partial_fit(X, Y)))


def test_a_callback_is_interrupted_at_once(time_out):
    reached = []

    def callback(net, record):
        reached.append("before")
        time_out()
        reached.append("after")

    net = Net(**SMALL, callbacks=[callback])
    with pytest.raises(TimeOut):
        net.fit(X, Y)
    assert reached == ["before"] and not hasattr(net, "model_")


@pytest.mark.parametrize("number, kept", [(signal.SIGINT, True), (signal.SIGTERM, False)], ids=["Ctrl-C", "time-out"])
def test_at_the_very_end(number, kept, time_out, monkeypatch):
    """Ctrl-C comes too late to undo a call; a time-out undoes it."""
    monkeypatch.setattr(supervised, "verdict", lambda *given: signal.raise_signal(number))
    net = Net(**{**SMALL, "epochs": 2})
    with pytest.raises(KeyboardInterrupt if kept else TimeOut):
        net.fit(X, Y)
    assert hasattr(net, "model_") == kept


def test_handlers_that_raise_nothing_run_and_stay():
    """They are given the frame in which the signal came, and one that a callback sets is not taken back."""
    seen = []

    def other(number, frame):
        seen.append("other")

    def callback(net, record):
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, other)

    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(frame.f_code.co_name))
    try:
        Net(**{**SMALL, "epochs": 1}, callbacks=[callback]).fit(X, Y)
        assert seen == ["callback"] and signal.getsignal(signal.SIGTERM) is other
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_time_limit_within_a_callback_gives_the_handler_back(time_out):
    """As a decorator does it: set a handler, do something that stands in for handlers, and set the one before again."""
    mine, other = signal.getsignal(signal.SIGTERM), Net(**{**SMALL, "epochs": 1}).fit(X, Y)

    def callback(net, record):
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)
        other.predict(X_TEST)
        signal.signal(signal.SIGTERM, before)

    Net(**{**SMALL, "epochs": 1}, callbacks=[callback]).fit(X, Y)
    assert signal.getsignal(signal.SIGTERM) is mine


def test_handlers_that_call_the_one_before_do_not_go_round(time_out):
    reached = []

    def callback(net, record):
        before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda number, frame: (reached.append(record["epoch"]), before(number, frame)))

    Net(**{**SMALL, "epochs": 2}, callbacks=[callback]).fit(X, Y)
    with pytest.raises(TimeOut), interrupt.deferred:
        time_out()
    assert reached == [2, 1]


def test_signals_that_wait_together_all_come(time_out):
    """The lowest number first, as Python has it, and whatever one of them raises."""
    with pytest.raises(TimeOut) as error, interrupt.deferred:
        time_out()
        signal.raise_signal(signal.SIGINT)
    assert isinstance(error.value.__context__, KeyboardInterrupt) and not interrupt.deferred.pending


@pytest.mark.alone
def test_ctrl_c_twice_leaves_no_block_behind():
    """The second one comes at once, but not while a block is entered or left."""
    pressed = []

    def press():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            pressed.append(signal.SIGINT)
            time.sleep(1e-5)

    for _ in range(300):
        pressed.clear()
        thread = threading.Thread(target=press)
        with pytest.raises(KeyboardInterrupt), interrupt.deferred:
            thread.start()
            while len(pressed) < 2:
                with interrupt.deferred:
                    pass
            time.sleep(5e-3)  # the second one may still be on its way
        thread.join()
        assert interrupt.deferred.levels == [] and not interrupt.deferred.pending
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
