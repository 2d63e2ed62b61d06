"""What runs on a graphics card, one after the other, each for so long at most."""

import json
import sys
import time
from pathlib import Path

import pytest

from bench.machinery import gpu
from bench.machinery.results import load


@pytest.mark.alone
def test_what_fails_on_a_card_does_not_keep_the_rest_from_running(tmp_path, monkeypatch):
    path, said = tmp_path / "card.json", []
    rows = json.dumps({"machine": {}, "rows": [{"suite": "gemm"}]})
    scripts = [
        "import sys; print('no'); sys.exit(3)",
        "import subprocess; print('slow', flush=True); subprocess.run(['sleep', '60'])",
        "open(FILE, 'w').write(ROWS)",
    ]
    monkeypatch.setattr(
        gpu,
        "steps",
        lambda folder: [
            gpu.Step(
                name,
                [sys.executable, "-c", script.replace("FILE", repr(str(folder / "c.json"))).replace("ROWS", repr(rows))],
                seconds,
            )
            for name, script, seconds in zip("abc", scripts, (20, 1, 20))
        ],
    )
    start = time.perf_counter()
    assert gpu.run(said.append, path) == 1 and time.perf_counter() - start < 30
    found = load(path)
    assert [step["outcome"] for step in found["steps"]] == ["exit status 3", "not done after 1 s", "passed"]
    assert [step["output"] for step in found["steps"]] == ["no\n", "slow\n", ""] and found["rows"] == [{"suite": "gemm"}]
    assert gpu.run(said.append, path, only="c") == 0 and load(path) == found  # a part is not recorded in place of the whole
    with pytest.raises(ValueError, match="--only 'd' matches none of the steps a, b, c"):
        gpu.run(said.append, path, only="d")
    assert gpu.file_of(["NVIDIA H200, driver 570.1"]).name == "nvidia-h200.json"
    with pytest.raises(RuntimeError, match="no GPU"):
        gpu.file_of([])


def test_what_a_card_is_asked_takes_less_than_eight_minutes(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    found = gpu.steps(Path("a"))
    assert len(found) == 3 + len(gpu.SUITES) and sum(step.seconds for step in found) <= 480
    assert all(Path(part).exists() for step in found for part in step.command if part.startswith("tests"))
