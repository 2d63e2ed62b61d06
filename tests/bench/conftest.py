"""Runs of `python -m bench` in the process of the tests."""

import multiprocessing
import os
import threading
import types
from multiprocessing.connection import Connection

import pytest

from bench.__main__ import main
from bench.machinery import worker


@pytest.fixture
def worker_threads(monkeypatch):
    """Workers are threads: to start a process for each implementation takes most of a quick run."""

    def thread(target, args, daemon):
        own = Connection(os.dup(args[0].fileno()))  # as a process has its own
        return threading.Thread(target=target, args=(own,), daemon=daemon)

    threads = types.SimpleNamespace(Pipe=multiprocessing.Pipe, Process=thread)
    monkeypatch.setattr(worker, "multiprocessing", types.SimpleNamespace(get_context=lambda way: threads))


@pytest.fixture
def run_bench(worker_threads, capsys):
    """run_bench(arguments…) -> (exit status, what it wrote, its errors), with threads as workers. Suites that need processes,
    and one of the others, have them: see test_cnn.py and test_before.py."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as left:
            status = left.code
        return status, *capsys.readouterr()

    return run
