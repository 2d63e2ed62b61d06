"""Where no card answers, device functions compile all the same, and nobody is told to install a driver."""

import subprocess
import sys

import numpy as np
import pytest

from numbanet import cli
from numbanet_kernels.runtime import arrays, availability, declare, driverless, emulation, launch

pytestmark = [
    pytest.mark.skipif(availability.nvvm_problem() is not None, reason=availability.nvvm_problem() or ""),
    pytest.mark.skipif(availability.cuda_problem() is None, reason="a card answers"),
]
cuda, kernel = declare.cuda, declare.kernel
F = np.float32


# --- device functions -------------------------------------------------------------------------------------------------
def test_device_functions_in_all_their_forms():
    """Typed by their calls, typed beforehand, one within the other, with an array, and with two results."""

    @cuda.jit(device=True)
    def twice(x):
        return x + x

    @cuda.jit("f4(f4)", device=True)
    def thrice(x):
        return F(3) * x

    @cuda.jit(device=True)
    def both(values, i):
        return twice(values[i]), thrice(values[i])

    @kernel("void(f4[::1], f4[::1])")
    def summed(x, y):
        i = cuda.grid(1)
        if i < x.size:
            a, b = both(x, i)
            y[i] = a * b

    x, y = np.arange(40, dtype=F), np.zeros(40, F)
    with emulation.emulated():
        launch.launch(summed, 2, 32, x, y)
    np.testing.assert_array_equal(y, 6 * x * x)


@pytest.mark.parametrize("asked", [(7, 5), (9, 0)])
def test_device_functions_are_compiled_for_what_is_asked_for(asked, monkeypatch):
    from numba.cuda import dispatcher

    seen, compile_cuda = [], dispatcher.compile_cuda
    monkeypatch.setattr(dispatcher, "compile_cuda", lambda *a, cc, **o: seen.append(cc) or compile_cuda(*a, cc=cc, **o))

    @cuda.jit(device=True)
    def twice(x):
        return x + x

    @kernel("void(f4[::1])")
    def doubled(x):
        x[0] = twice(x[0])

    assert f".target sm_{asked[0]}{asked[1]}" in doubled.ptx(asked) and seen == [asked]


def test_a_plain_kernel_is_declared_once_more():
    @cuda.jit
    def plain(x):
        x[cuda.grid(1)] += 1

    x = np.zeros(32, F)
    with emulation.emulated():
        launch.launch(kernel("void(f4[::1])")(plain), 1, 32, x)
    assert (x == 1).all()


# --- what is said -----------------------------------------------------------------------------------------------------
@cuda.jit
def plain(x):
    x[cuda.grid(1)] += 1


@cuda.jit(device=True)
def helper(x):
    return x + 1


@kernel("void(f4[::1])")
def declared(x):
    x[cuda.grid(1)] += 1


ONES = np.ones(32, F)
NEEDS_A_CARD = {
    "a plain kernel": lambda: plain[1, 32](ONES),
    "Numba's to_device": lambda: cuda.to_device(ONES),
    "Numba's device_array": lambda: cuda.device_array(3),
    "synchronize": lambda: cuda.synchronize(),
    "a kernel typed beforehand": lambda: cuda.jit("void(f4[::1])")(plain.py_func),
    "events": lambda: cuda.event(),
    "streams": lambda: cuda.stream(),
    "devices": lambda: cuda.get_current_device(),
}


def refused(error):
    said = str(error.value)
    assert "emulated" in said and "@kernel" in said and "launch" in said
    assert "driver" not in said and "install" not in said.lower()
    return True


@pytest.mark.parametrize("call", NEEDS_A_CARD.values(), ids=NEEDS_A_CARD)
def test_what_needs_a_card_is_told_on_the_emulated_device(call):
    with pytest.raises(driverless.NoCard) as error, emulation.emulated():
        call()
    assert refused(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda: launch.launch(declared, 1, 32, ONES),
        lambda: arrays.to_device(ONES),
        lambda: arrays.device_array(3),
        launch.synchronize,
    ],
    ids=["launch", "to_device", "device_array", "synchronize"],
)
def test_who_forgets_the_emulated_device_is_told(call):
    with pytest.raises(driverless.NoCard) as error:
        call()
    assert refused(error)


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("given, kind", [(plain, "CUDADispatcher"), (helper, "CUDADispatcher"), (plain.py_func, "function")])
def test_what_was_not_declared_is_not_launched(given, kind, emulated):
    problem = rf'launch: \w+ is a {kind}, not declared by @kernel\("void\(...\)"\)'
    with pytest.raises(ValueError, match=problem) as error, emulation.emulated(emulated):
        launch.launch(given, 1, 32, ONES)
    assert "driver" not in str(error.value)


@pytest.mark.parametrize("call", [lambda: declared(ONES), lambda: declared[1, 32](ONES)], ids=["kernel(x)", "kernel[1, 32](x)"])
def test_a_declared_kernel_that_is_called_names_launch(call):
    with pytest.raises(TypeError, match=r"declared: start it by launch\(declared, grid, block, \*arguments\), a function of"):
        call()


def test_a_kernel_needs_a_signature():
    with pytest.raises(TypeError, match=r'state the signature of plain, such as @kernel\("void'):
        declare.kernel(plain.py_func)


def test_other_missing_modules_are_still_missing():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), emulation.emulated():
        import no_such_module  # noqa: F401


PLAIN = """
import numpy as np
from numba import cuda

@cuda.jit{signature}
def plain(x):
    x[cuda.grid(1)] += 1

def show():
    plain[1, 32](np.ones(32, np.float32))
"""


@pytest.mark.parametrize("signature", ["", '("void(f4[::1])")'])
def test_the_command_line_says_so_of_a_file_with_plain_kernels(tmp_path, capsys, signature):
    path = tmp_path / "own.py"
    path.write_text(PLAIN.format(signature=signature))
    assert cli.main(["kernels", "--counters", f"{path}:show"]) == 2
    said = capsys.readouterr().err
    assert "numbanet: error: no card answers" in said and "driver" not in said and "@kernel" in said
    assert "@cuda.jit kernels, runs without a card inside `with numbanet.emulated():`, and in files by `numbanet check" in said
    assert cli.main(["kernels", "--counters", str(path)]) == 2
    assert f"{path}: name a function of the file that launches kernels, as in {path}:show" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_whose_device_functions_come_first(tmp_path):
    """Numba is imported before numbanet is, and its device function typed after."""
    code = (
        "from numba import cuda\nfrom numbanet_kernels.runtime.declare import kernel\n"
        "@cuda.jit('f4(f4)', device=True)\ndef f(x):\n    return x\nprint('compiled')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "compiled\n", done.stderr
