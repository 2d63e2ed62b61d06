"""The command line as a user types it: output, exit status, one-line errors."""

import json
import os
import re
import subprocess
import sys

import pytest

import numbanet
from numbanet import cli
from numbanet.cli import compiling
from numbanet.cli.wording import in_options
from numbanet.device import problem


def run(capsys, *arguments):
    """(exit status, stdout, stderr)"""
    try:
        status = cli.main(arguments)
    except SystemExit as done:
        status = done.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_train_prints_accuracy_and_draws(capsys, tmp_path):
    status, out, _ = run(
        capsys,
        "train",
        "--layers",
        "32",
        "--epochs",
        "2",
        "--dropout",
        "tdp",
        "--rate",
        "0.3",
        "--quiet",
        "--plot",
        str(tmp_path / "curves.png"),
    )
    assert status == 0 and "test accuracy" in out and "tdp" in out
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG") and len(list(tmp_path.iterdir())) == 1


def test_devices_compile_runs_small_fits_of_each_family(capsys, monkeypatch):
    ran = []
    assert {name.partition(",")[0] for name in compiling.fits()} == {"perceptrons", "convolutions", "regression", "text"}
    monkeypatch.setattr(compiling, "fits", lambda: {name: lambda name=name: ran.append(name) for name in "ab"})
    status, out, _ = run(capsys, "devices", "--compile")
    assert status == 0 and ran == ["a", "b"] and "later processes read the compiled loops from the cache" in out


COMPILED = """
import warnings
import numpy as np
from numba.core import event
from numbanet import Net, SkewNormalSchedule
from numbanet.cli import compiling

class Count(event.Listener):
    n = 0
    def on_start(self, seen): self.n += 1
    def on_end(self, seen): pass

warnings.simplefilter("ignore")
counts = [Count(), Count()]
with event.install_listener("numba:compile", counts[0]):
    compiling.run()
with event.install_listener("numba:compile", counts[1]):
    x = np.random.default_rng(1).random((200, 1, 32, 32), np.float32)
    rates = SkewNormalSchedule(0.4, epochs=2)
    Net("lenet5", dropout="rsdp", dropout_rate=rates, epochs=2).fit(x, np.arange(200) % 3).predict(x)
    Net((300, 200), dropout="window", optimizer="adam", epochs=5).fit(x.reshape(200, -1), np.arange(200) % 5)
print([count.n for count in counts])
"""


@pytest.mark.long
def test_after_devices_compile_nothing_is_compiled(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, timeout=600)
    first, later = json.loads(done.stdout.splitlines()[-1])
    assert first > 100 and later == 0, done.stdout


def test_devices_and_kernels(capsys):
    status, out, _ = run(capsys, "devices")
    assert status == 0 and "cpu" in out and "cuda" in out and "device='auto' chooses" in out
    status, out, _ = run(capsys, "kernels")
    assert status == 0 and all(name in out for name in ("gemm_rows", "gemm_tiles", "softmax_cross", "CUDA kernels"))


@pytest.mark.slow
def test_the_profile_of_a_network(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBANET_PROFILES", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    arguments = "devices", "--profile", "lenet5", "--batch", "2", "--on", "cpu:1,cpu", "--watts", "cpu=65,cpu:1=40"
    status, out, err = run(capsys, *arguments, "--objective", "energy")
    assert (status, err) == (0, "") and "placement by energy: a training step" in out and "2 x 1 x 28 x 28" in out
    assert all(word in out for word in ("cpu:1", "backward", "update", "mJ", "Conv2d 5x5 + ReLU", "on one device"))
    (file,) = tmp_path.iterdir()
    before = file.read_text()
    assert run(capsys, *arguments)[0] == 0 and file.read_text() == before  # read, not measured
    assert run(capsys, *arguments, "--again")[0] == 0 and file.read_text() != before
    assert "a forward pass" in run(capsys, *arguments, "--prediction")[1]
    for bad, why in (
        (("--profile", "resnet"), "there is no network 'resnet'"),
        (("--profile", "lenet5", "--on", "tpu"), "there is no device 'tpu'"),
        (("--profile", "lenet5", "--batch", "0"), "--batch must be"),
        (("--profile", "lenet5", "--batch", "2", "--on", "cpu", "--objective", "energy"), "needs joules of each layer"),
    ):
        status, _, err = run(capsys, "devices", *bad)
        assert status == 2 and why in err and err.count("\n") == 1, err
    status, _, err = run(capsys, "devices", "--watts", "cpu")
    assert status == 2 and "must be DEVICE=W" in err


@pytest.mark.skipif(problem("emulated") is not None, reason="needs NVVM")
@pytest.mark.slow
def test_counters(capsys, tmp_path):
    status, out, _ = run(capsys, "kernels", "--counters", "add", "gemm_rows", "--plot", str(tmp_path / "a.png"))
    assert status == 0 and "gemm_block" in out and (tmp_path / "a.png").stat().st_size > 1000
    assert re.search(r"add +binary +\S+ +0% +24\.6k +295k +1\.00 +0\.08 +0 +0", out)
    for bad, why in (
        (("--counters", "nothing"), "no example of 'nothing'; choose from "),
        (("--plot", "a.png"), "--plot needs --counters"),
        (("--counters", "add", "--plot", "a.txt"), "must end"),
    ):
        status, _, err = run(capsys, "kernels", *bad)
        assert status == 2 and why in err


OWN = """
import numpy as np
from numbanet_kernels.runtime.arrays import to_device
from numbanet_kernels.runtime.declare import cuda, kernel
from numbanet_kernels.runtime.launch import launch

@kernel("void(f4[::1])")
def counted(x):
    x[cuda.grid(1)] += 1

ONES = to_device(np.ones(32, np.float32))  # on the emulated device, before any function is called

def nothing():
    pass

def empty():
    launch(counted, 0, 32, ONES)

def something():
    launch(counted, 1, 32, ONES)

def with_an_argument(x):
    launch(counted, 1, 32, x)
"""


@pytest.mark.skipif(problem("emulated") is not None, reason="needs NVVM")
def test_counters_of_what_launches_nothing(capsys, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    for names in (["nothing"], ["empty"], ["something", "nothing"]):
        status, out, err = run(
            capsys, "kernels", "--counters", *(f"{path}:{name}" for name in names), "--plot", str(tmp_path / "roof.png")
        )
        assert (status, out) == (2, "") and f"own.py:{names[-1]} launched no kernel" in err and err.count("\n") == 1
        assert not (tmp_path / "roof.png").exists()
    status, out, _ = run(capsys, "kernels", "--counters", f"{path}:something")
    assert status == 0 and "counted" in out
    status, _, err = run(capsys, "kernels", "--counters", f"{path}:with_an_argument")
    assert status == 2 and "missing a required argument: 'x'" in err and "name a function without arguments" in err


def test_bench_says_where_it_is(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "numbanet.bench" else pytest.fail(name))
    status, out, err = run(capsys, "bench", "list")
    assert (status, out) == (2, "") and err.endswith("not installed; in a checkout run `python -m bench`\n")


@pytest.mark.slow
def test_demo(capsys, tmp_path, monkeypatch):
    from numbanet import demo

    assert demo.run(tmp_path / "demo.png", "cpu", (16, 16), epochs=2) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("none", "bernoulli", "rdp", "tdp", "window early", "test accuracy"))
    assert (tmp_path / "demo.png").stat().st_size > 10_000


BAD = [
    (["train", "--data", "imagenet"], "one of digits, mnist, fashion-mnist, cifar10; got 'imagenet'"),
    (["train", "--data", "wikitext2"], "one of digits, mnist, fashion-mnist, cifar10; got 'wikitext2'"),
    (["train", "--dropout", "dropconnect"], "dropconnect"),
    (["train", "--rate", "1.5"], "--rate must be a number in [0, 1) or one of these for each layer; got 1.5\n"),
    (["train", "--layers", "a,b"], "--layers"),
    (["train", "--layers", "8,0"], "--layers: must be widths such as 256,256, not 8,0"),
    (["train", "--epochs", "0"], "error: --epochs must be"),
    (["train", "--seed", "-1"], "--seed: must be an integer from 0"),
    (["train", "--device", "tpu"], "tpu"),
    (["train", "--learning-rate", "-1"], "error: --learning-rate must be"),
    (["train", "--optimizer", "SGD"], "'sgd', 'adam' or 'adamw'\n"),
    (["train", "--plot", "curves.txt"], ".png"),
    (["train", "--report", "run.txt"], "must end in .html or .htm\n"),
    (["train", "--save", "net.onnx"], "networks are saved as .safetensors, not as .onnx\n"),
    (["check", "a.py", "--html", "lines.txt"], "must end in .html or .htm\n"),
    (["challenge", "--neurons", "5"], "of 1024, 4096, 16384 or 65536 neurons a layer, not of 5"),
    (["challenge", "--layers", "0"], "--layers must be a positive integer, got 0"),
    (["challenge", "--data", "no/folder"], "have the network generated: --data generated\n"),
    (["train", "--plot", "no/such/folder/curves.png"], "no folder"),
    (["train", "--rate", "0.1,0.2,0.3"], "3 entries for 2"),
    (["devices", "--profile", "lenet5", "--calibrate", "--compile"], "error: --calibrate, --compile: not with --profile"),
    (["devices", "--objective", "energy", "--batch", "0"], "error: --batch, --objective: only with --profile NETWORK\n"),
    (["devices", "--watts", "cpu=65"], "error: --watts: only with --profile NETWORK\n"),
    (["devices", "--on", "cpu", "--again", "--prediction"], "error: --on, --prediction, --again: only with --profile"),
    (["devices", "--profile", "lenet5", "--watts", "cpu=65,cpu=70"], "--watts: must be DEVICE=W,…, each device once"),
    (["devices", "--profile", "lenet5", "--watts", "65"], "--watts: must be DEVICE=W,…"),
    (["check"], "numbanet check: error: the following arguments are required: file\n"),
    (["check", "--counters", "--"], "required: file\n"),
    (["fly"], "fly"),
    ([], "COMMAND"),
]


@pytest.mark.parametrize("arguments, named", BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_bad_input_is_one_line_and_status_2(capsys, arguments, named):
    status, out, err = run(capsys, *arguments)
    assert status == 2 and out == "" and err.count("\n") == 1 and "error: " in err and named in err


@pytest.mark.parametrize(
    "said, shown",
    [
        ("go on by Net.resume('a (b)').fit(...), with the same data, or not", "go on by the same command with --resume or not"),
        ("a is a checkpoint: Net.resume of its folder", "a is a checkpoint: numbanet train --checkpoint FOLDER --resume"),
        ("resume: dropout_rate was 0; only epochs, callbacks, n_jobs may", "resume: --rate was 0; only --epochs, --n-jobs may"),
        ("resume: epochs=1, but random_state=3", "resume: --epochs 1, but --seed 3"),
        ("with layers=(8,), dropout_rate=(0.3, 0.2)", "with --layers 8, --rate 0.3,0.2"),
        ("layers=[8, 16]: learning_rate=None, parallel=None", "--layers 8,16: no --learning-rate, no --mpi"),
        ("made with early_stopping=False, and optimizer='adam'", "made with --no-early-stopping, and --optimizer adam"),
        ("early_stopping=True; larger learning_rate, more epochs", "--early-stopping; larger --learning-rate, more epochs"),
        ("parallel='mpi' needs mpi4py; device='auto' runs", "--mpi needs mpi4py; --device auto runs"),
        *[
            (text, text)
            for text in ("the column 'n_jobs' of a/n_jobs.csv, a-epochs=2", "class_weight='balanced'", "the data must be files")
        ],
    ],
)
def test_messages_name_options_for_parameters(said, shown):
    assert in_options(said, cli._parser().parse_args(["train"]).named) == shown


def test_without_a_command_the_error_names_all(capsys):
    names = "train, predict, scale, demo, challenge, devices, kernels, check or bench"
    assert run(capsys) == (2, "", f"numbanet: error: COMMAND is missing: {names} (--help has the rest)\n")
    assert len(cli.COMMANDS) == len(names.replace(" or ", ", ").split(", "))


def test_version_and_warnings_in_plain_words(capsys):
    status, out, _ = run(capsys, "--version")
    assert status == 0 and out == f"numbanet {numbanet.__version__}\n"
    status, _, err = run(capsys, "train", "--layers", "8", "--dropout", "tdp", "--epochs", "1", "--quiet")
    assert status == 0 and err.startswith("numbanet: tdp: a weight") and ".py" not in err


def test_missing_data_is_one_line_and_status_2(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBANET_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"not a gzip file")
    status, _, err = run(capsys, "train", "--data", "mnist")
    assert status == 2 and err.count("\n") == 1 and "train-images-idx3-ubyte.gz" in err


@pytest.mark.slow
def test_python_m_numbanet():
    done = subprocess.run(
        [sys.executable, "-m", "numbanet", "train", "--dropout", "x"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_an_interrupt_is_no_traceback(capsys, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.devices, "run", interrupt)
    assert run(capsys, "devices")[0] == 130
