"""Whose sound a search for capacity keeps until it is heard."""

from contextlib import ExitStack

from polyvox.bench.load import Lag, Load
from polyvox.bench.metrics import Trace
from polyvox.bench.results import Run
from polyvox.cli.measuring import Measurement, Measuring


def run(level: float) -> Run:
    return Run(
        Load("closed", level),
        Lag(None, 0.0, 1),
        [Trace(0, 0, 1, True, 0.0, arrivals=[(0.1, 1)], sound=bytearray(b"ab"))],
    )


def test_only_the_load_that_may_be_the_answer_keeps_its_sound() -> None:
    with ExitStack() as stack:
        measuring = Measuring(Measurement(base_url="http://127.0.0.1:9"), [Load("closed", 8)], stack)
    broken: set[int] = set()

    def tried(level: float, broke: bool = False) -> list[float]:
        """The loads whose sound is there after a run of this one."""
        measuring.runs.append(run(level))
        if broke:
            broken.add(id(measuring.runs[-1]))
        measuring.let_sound_go(lambda each: id(each) in broken, repeats=2)
        return [each.load.level for each in measuring.runs if each.traces[0].sound is not None]

    assert tried(1) == [1]
    assert tried(1) == [1, 1]
    assert tried(2) == [1, 1, 2]  # it may still break
    assert tried(2) == [2, 2]
    assert tried(4) == [2, 2, 4]
    assert tried(4, broke=True) == [2, 2]
    assert tried(3) == [2, 2, 3]
    assert tried(3) == [3, 3]
