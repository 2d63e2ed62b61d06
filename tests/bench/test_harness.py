"""The harness finds known ratios and refuses what is wrong."""

import dataclasses
import json
import multiprocessing
import sys
import threading
import time

import numpy as np
import pytest

from bench.machinery import harness, machine, worker
from bench.machinery.harness import Case, Implementation, Schedule, measure, quantiles, relative_error
from bench.machinery.machine import cpu_of
from bench.machinery.results import Results
from bench.machinery.table import markdown
from bench.machinery.worker import Task, Worker, WorkerError, Workers, rest

FAST = Schedule(pairs=5, turn=0.01, pause=0.0, warm_up=1)


# --- fake implementations: functions of a module, because workers import them -----------------------------------------
def sleeper(seconds, value=1.0):
    return Task(lambda: time.sleep(seconds), lambda: {"y": np.full(3, value)})


def raiser():
    raise ZeroDivisionError("no such\nimplementation")


def leaver():
    sys.exit(7)


def _case(*implementations, least=1):
    return Case("fake", "sleep", implementations, lambda outputs: relative_error(outputs["y"], np.ones(3)), least=least)


@pytest.fixture
def workers():
    with Workers(threads=1) as found:
        yield found


# --- harness ----------------------------------------------------------------------------------------------------------
@pytest.mark.alone
def test_known_ratio_is_found(workers):
    slow = Implementation("slow", sleeper, {"seconds": 0.02})
    fast = Implementation("fast", sleeper, {"seconds": 0.005}, peer="slow", ceiling=4.0)
    first, second = measure(_case(fast, slow), workers, FAST)
    assert (first.implementation, first.peer, second.peer) == ("fast", "slow", None)
    assert first.problem is None and first.error == 0
    assert 2.0 < first.ratio < 5.0 and first.ratio_p10 <= first.ratio <= first.ratio_p90
    assert 5 <= first.median_ms < 20 <= second.median_ms and first.p10 <= first.median_ms <= first.p90
    assert first.turns == second.turns == 5 and first.repetitions >= 2 and second.ratio is None


class _Event:
    """A clock that runs ten times as fast as a card's."""

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return 1e4 * (end.at - self.at)


@pytest.mark.alone
def test_a_card_is_timed_by_its_own_clock_as_well():
    task = Task(lambda: time.sleep(0.002), dict, event=_Event)
    wall, on_card = task.seconds(5)
    assert 0.01 <= wall < on_card / 5
    assert Task(lambda: None, dict).seconds(1)[1] is None
    row = {"suite": "mlp", "case": "a", "implementation": "b", "median_ms": 2.0, "p10": 1.0, "p90": 3.0}
    assert "GPU ms" not in markdown([row]) and "| 1.5 |" in markdown([{**row, "device_ms": 1.5}, row])


def test_turns_alternate_strictly_and_hold_the_least_repetitions():
    order = []

    class Recorder(dict):
        def __missing__(self, name):
            return self

        def __init__(self, name):
            self.name = name

        def ask(self, verb, count=None):
            if verb == "run":
                order.append((self.name, count))
                return 0.02 * count, None
            return {"y": np.ones(3)} if verb == "outputs" else None

    fakes = {name: Recorder(name) for name in "ab"}
    measure(_case(Implementation("a", sleeper, peer="b"), Implementation("b", sleeper), least=20), fakes, FAST)
    timed = order[2:]  # two calls to find out how many repetitions a turn has
    assert [name for name, _ in timed] == ["b", "a"] * (FAST.pairs + FAST.warm_up)
    assert {count for _, count in timed} == {20}


def test_turn_ends_when_no_thread_runs_any_more():
    stop = time.perf_counter() + 0.3
    spinning = threading.Thread(target=lambda: [None for _ in iter(lambda: time.perf_counter() < stop, False)])
    spinning.start()
    rest(most=10.0)
    assert stop <= time.perf_counter() < stop + 5
    spinning.join()


@pytest.mark.parametrize("seconds, rests", [(0.03, 1), (0.0, 0)])
def test_a_worker_rests_after_turns_that_count(monkeypatch, seconds, rests):
    told = []
    monkeypatch.setattr(worker, "rest", lambda: told.append(True))
    ours, theirs = multiprocessing.Pipe()
    for request in (("load", (sleeper, {"seconds": seconds})), ("run", 1)):
        ours.send(request)
    ours.send("the end")  # no pair, so that the worker stops
    with pytest.raises(ValueError, match="unpack"):
        worker.serve(theirs)
    assert len(told) == rests


@pytest.mark.slow
def test_wrong_implementation_is_refused(worker_threads, workers):
    wrong = Implementation("wrong", sleeper, {"seconds": 0.001, "value": 1.1})
    right = Implementation("right", sleeper, {"seconds": 0.001}, peer="wrong")
    nan = Implementation("nan", sleeper, {"seconds": 0.001, "value": float("nan")})
    bad, compared, broken = measure(_case(wrong, right, nan), workers, FAST)
    assert bad.problem.startswith("wrong") and bad.error == pytest.approx(0.1) and bad.median_ms is None
    assert compared.problem == "not timed: its peer, wrong, failed" and compared.median_ms is None
    assert broken.problem.startswith("wrong") and broken.error is None


@pytest.mark.slow
def test_failures_of_implementations_are_results(workers):
    rows = measure(
        _case(
            Implementation("raiser", raiser),
            Implementation("leaver", leaver),
            Implementation("alone", sleeper, {"seconds": 0.001}),
        ),
        workers,
        FAST,
    )
    assert rows[0].problem == "ZeroDivisionError: no such implementation"
    assert rows[1].problem == "its process ended with exit status 7"
    assert rows[2].problem is None and rows[2].ratio is None and rows[2].turns == FAST.pairs


def test_worker_has_the_threads_it_was_given():
    worker = Worker(threads=1)
    try:
        with pytest.raises(WorkerError, match="AttributeError"):
            worker.ask("outputs")  # nothing is loaded
        worker.ask("load", (_reader, {}))
        assert worker.ask("outputs") == {"threads": "1", "torch": False}
    finally:
        worker.close()


def _reader():
    import os

    return Task(lambda: None, lambda: {"threads": os.environ["OPENBLAS_NUM_THREADS"], "torch": "torch" in sys.modules})


def test_statistics():
    assert quantiles([1.0, 2.0, 3.0]) == pytest.approx((2.0, 1.2, 2.8))
    assert relative_error([1.0, 2.0], [1.0, 4.0]) == 0.5
    assert relative_error([1.0], [1.0, 1.0]) == relative_error([np.nan], [1.0]) == float("inf")


def test_only_some_of_the_cases():
    cases = [dataclasses.replace(_case(Implementation("raiser", raiser)), name=name) for name in ("some", "awesome")]
    rows = harness.run_cases("x", cases, harness.Options(quick=True, only="^some"), Results(None), lambda text: None)
    assert [row["case"] for row in rows] == ["some"]


def test_files_that_hold_no_results_are_refused(tmp_path):
    path = tmp_path / "a.json"
    for text in ("{", "[]", json.dumps({"rows": []})):
        path.write_text(text)
        with pytest.raises(ValueError, match="a.json"):
            Results(path)
        assert path.read_text() == text


@pytest.mark.parametrize(
    "text, expected",
    [
        ("model name\t: AMD EPYC\ncpu family\t: 25\nmodel\t\t: 17\n", "AMD EPYC (family 25, model 17)"),
        ("model name\t: AMD EPYC 9654 96-Core\ncpu family\t: 25\nmodel\t\t: 17\n", "AMD EPYC 9654 96-Core"),
        ("model name\t: Some Processor\n", "Some Processor"),
    ],
)
def test_processors_without_a_number_are_told_by_family_and_model(text, expected):
    assert cpu_of(text) == expected


@pytest.mark.parametrize(
    "chosen, expected", [("mkl", "MKL"), ("openblas", np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"])]
)
def test_results_name_the_library_of_products_that_computed_them(monkeypatch, chosen, expected):
    monkeypatch.setattr(machine, "library", lambda: chosen)
    assert machine.machine()["blas"].split()[0] == expected
