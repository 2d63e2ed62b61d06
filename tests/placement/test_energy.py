"""Meters of energy: a user's, RAPL's files with their overflow, and stated watts."""

import pytest

from numbanet.placement import NONE, Figure, energy


def zone(root, name, joules, most=100, what="package-0"):
    folder = root / name
    folder.mkdir(exist_ok=True)
    (folder / "name").write_text(f"{what}\n")
    (folder / "energy_uj").write_text(f"{int(joules * 1e6)}\n")
    (folder / "max_energy_range_uj").write_text(f"{int(most * 1e6)}\n")


def test_rapl_adds_packages_and_counts_on_after_an_overflow(tmp_path):
    zone(tmp_path, "intel-rapl:0", 90)
    zone(tmp_path, "intel-rapl:1", 5)
    zone(tmp_path, "intel-rapl:0:0", 1000)  # the cores, which package 0 includes
    meter = energy.rapl(tmp_path)
    assert meter.name == "RAPL" and meter.joules() == pytest.approx(95)
    zone(tmp_path, "intel-rapl:0", 10)
    assert meter.joules() == pytest.approx(115)
    zone(tmp_path, "intel-rapl:0", 30)
    assert meter.joules() == pytest.approx(135)


def test_the_whole_platform_is_not_added_to_its_packages(tmp_path):
    zone(tmp_path, "intel-rapl:0", 90, what="package-0")
    zone(tmp_path, "intel-rapl:1", 70, what="psys")
    assert energy.rapl(tmp_path).joules() == pytest.approx(90)


def test_nvml_counts_millijoules(monkeypatch):
    class Library:
        NVMLError = RuntimeError
        nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
        nvmlDeviceGetTotalEnergyConsumption = staticmethod(lambda handle: 1500 + handle)

    monkeypatch.setattr(energy.facts, "nvml", lambda: Library)
    assert energy.meter("cuda", False, True).joules() == energy.nvml(0).joules() == 1.5

    def old(handle):
        raise RuntimeError("not supported")

    monkeypatch.setattr(Library, "nvmlDeviceGetTotalEnergyConsumption", staticmethod(old))
    assert energy.nvml() is None


def test_without_counters_there_is_no_meter(tmp_path):
    assert energy.rapl(tmp_path) is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert energy.rapl(tmp_path) is None  # a counter that cannot be read


class Clock:
    """Two seconds pass in each call of `work`, which draws 5 J."""

    def __init__(self, monkeypatch, joules=5.0):
        self.now, self.drawn, self.each = 0.0, 0.0, joules
        monkeypatch.setattr(energy.time, "perf_counter", lambda: self.now)

    def work(self, n):
        self.now, self.drawn = self.now + 2.0 * n, self.drawn + self.each * n


def test_a_meter_is_read_over_a_window(monkeypatch):
    clock = Clock(monkeypatch)
    watts, joules = energy.measured(clock.work, energy.Meter("mine", lambda: clock.drawn), seconds=9)
    assert clock.now >= 9 and (watts, joules) == (Figure(2.5), Figure(5.0))


@pytest.mark.parametrize("joules", [0.0, -1.0, float("nan")])
def test_a_meter_that_stands_still_is_no_measurement(monkeypatch, joules):
    clock = Clock(monkeypatch, joules)
    assert energy.measured(clock.work, energy.Meter("mine", lambda: clock.drawn)) == (NONE, NONE)


def test_a_meter_that_fails_is_no_measurement(monkeypatch):
    def broken():
        raise OSError("no permission")

    assert energy.measured(Clock(monkeypatch).work, energy.Meter("mine", broken)) == (NONE, NONE)


def test_the_users_meter_comes_first():
    assert energy.meter("cpu", True, False, lambda: 1.0).name == "given"
    assert energy.meter("cpu", True, False, {"cpu": lambda: 1.0}).name == "given"
    with pytest.raises(TypeError, match="the meter of 'cpu' must be a function"):
        energy.meter("cpu", True, False, {"cpu": 65})


def test_stated_watts_are_an_estimate():
    assert energy.stated(50.0, Figure(20.0)) == (Figure(50.0, "estimated"), Figure(1.0, "estimated"))
    assert energy.stated(None, Figure(20.0)) == energy.stated(50.0, NONE) == (NONE, NONE)


@pytest.mark.parametrize(
    "meters, error, why",
    [
        ({"gpu": lambda: 1.0}, ValueError, "meters: there is no device 'gpu' among 'cpu'"),
        ({"cpu": 65}, TypeError, "meters: the value of 'cpu' must be a function that returns the joules so far, got 65"),
    ],
)
def test_bad_meters_are_refused(meters, error, why):
    with pytest.raises(error, match=why):
        energy.check_meters(meters, ["cpu"])


@pytest.mark.parametrize("watts, why", [({"gpu": 3}, "no device 'gpu'"), ({"cpu": 0}, "above 0"), ({"cpu": "65"}, "above 0")])
def test_bad_watts_are_refused(watts, why):
    with pytest.raises(ValueError, match=why):
        energy.check_by_device("watts", watts, ["cpu"])
