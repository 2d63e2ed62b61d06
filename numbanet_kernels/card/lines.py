"""Kernels that are compiled once more, with lines of Python, together with the device functions that they call."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock


def compiled(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the kernel of Numba (`dispatcher._Kernel`) that is made of `args` and `options`, with lines of Python."""
    from numba.cuda import dispatcher

    def made() -> Any:
        with _anew(dispatcher.CUDADispatcher):
            return dispatcher._Kernel(*args, **{**options, "lineinfo": True})  # noqa: SLF001

    with dispatcher.global_compiler_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # functions that Numba makes have no source
        # what Numba itself inlines (inline="always") loses its lines, and what LLVM inlines keeps them
        with contextlib.suppress(Exception), mock.patch.object(_inlining(), "_do_work", return_value=False):
            return made()
        return made()  # some functions have to be inlined, such as those whose arguments are shapes of shared arrays


def _inlining() -> Any:
    """Return Numba's pass that inlines functions."""
    from numba.core import untyped_passes
    from numba.cuda import compiler

    return getattr(compiler, "InlineInlinables", untyped_passes.InlineInlinables)


@contextlib.contextmanager
def _anew(dispatchers: Any) -> Iterator[None]:
    """Return a context in which Numba compiles device functions anew, with lines of Python, where a kernel or another function
    calls them. At its end they are what they were before.
    """
    before: list[tuple[Any, dict[Any, Any], Any]] = []
    find = dispatchers.get_call_template

    @functools.wraps(find)
    def found(function: Any, args: Any, kws: Any) -> Any:
        options, module = function.targetoptions, f"{function.py_func.__module__}"
        own = not options.get("debug") and module.partition(".")[0] != "numba"  # Numba's functions have the line of their call
        if own and all(function is not other for other, *_ in before):
            before.append((function, dict(function.overloads), options))
            function.overloads.clear()
            function.targetoptions = {**options, "lineinfo": True}
            if not function._can_compile:  # noqa: SLF001  it has the signatures that it was declared with
                for kinds, made in before[-1][1].items():
                    function.compile_device(kinds, made.signature.return_type)
        return find(function, args, kws)

    with mock.patch.object(dispatchers, "get_call_template", found):
        try:
            yield
        finally:
            for function, overloads, options in before:
                for made in function.overloads.values():
                    with contextlib.suppress(KeyError):
                        function.targetctx.remove_user_function(made.entry_point)
                function.overloads.clear()
                function.overloads.update(overloads)
                function.targetoptions = options
