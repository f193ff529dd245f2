"""polyvox bench as its users run it; every command of docs/benchmark.md, only shorter."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.fake_server import FakeServer, SegmentQueue, serving, tone
from polyvox import tts
from polyvox.bench import weights
from polyvox.cli.main import main
from polyvox.engine.memory import CPU_SLOTS
from polyvox.models.qwen3_tts import synthetic

PAGE = Path(__file__).parents[2] / "docs/benchmark.md"
STAND_IN = """
class load_model:
    def __init__(self, name): ...
    def recognize(self, path): return open(path, "rb").read(4).decode()
"""
FIGURES = PAGE.with_name("performance.md")
SHORT = ("--seconds", "0.4", "--warmup", "0.1", "--repeats", "1")


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    # The second chunk is 240 ms late for a player without a buffer; much, as machines that run tests are busy.
    with serving(FakeServer(standard=SegmentQueue([(0.01, tone(60)), (0.3, tone(300))]))) as served:
        yield served


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: FakeServer) -> "Bench":
    monkeypatch.chdir(tmp_path)
    return Bench(monkeypatch, server)


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
        self.monkeypatch, self.server = monkeypatch, server

    def __call__(self, *arguments: str) -> int:
        """The exit status of polyvox bench."""
        self.monkeypatch.setattr(sys, "argv", ["polyvox", "bench", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        assert isinstance(caught.value.code, int)
        return caught.value.code

    def serve(self, *arguments: str) -> int:
        return self("serve", "--base-url", self.server.address, *SHORT, *arguments)


def test_the_commands_of_the_documentation_run(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (hearing,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    Path("hear.py").write_text(hearing)
    Path("onnx_asr.py").write_text(STAND_IN)  # beside hear.py, where it is found first
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    lines = [shlex.split(line.replace("http://127.0.0.1:8000", bench.server.address)) for line in block.splitlines()]
    assert {line[2] for line in lines} == {"serve", "capacity", "compare", "engine"}
    for polyvox, command, *arguments in lines:
        assert polyvox == "polyvox"
        if arguments[0] in ("serve", "capacity"):
            arguments += SHORT
        elif arguments[0] == "engine":
            arguments += ["--repeats", "2"]
        status = bench(*arguments)
        told = capsys.readouterr()
        if "--wer" in arguments:
            assert "Word error rate" in told.out
        expected = 1 if arguments[0] == "capacity" else 0  # this server runs dry at any load
        assert status == expected, (command, told.err)
    assert Path("a.html").read_text().count("<svg") == 4
    assert Path("engine.html").read_text().count("<svg") == 3


def test_the_commands_behind_the_figures_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", FIGURES.read_text(), re.MULTILINE | re.DOTALL)
    lines = [
        shlex.split(re.sub(r"http://127.0.0.1:\d+", bench.server.address, line))
        for line in "".join(blocks).splitlines()
    ]
    assert [line[:3] for line in lines] == [["polyvox", "bench", "serve"]]
    for _, _, *arguments in lines:
        assert bench(*arguments, *SHORT) == 0, capsys.readouterr().err
    assert Path("server.png").stat().st_size > 10_000
    assert "<svg" in Path("server.html").read_text()


def test_engine_measures_each_type_that_is_computed_in(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = synthetic.random_model(synthetic.tiny_files("custom_voice"), torch.device("cpu"), torch.float32)
    model.codec.narrow(torch.bfloat16)  # its codebooks stay float32, as on a GPU
    monkeypatch.setattr(weights, "random_weights", lambda *_: model)
    status = bench("engine", "--model", "0.6B", "--batch", "1", "--context", "16", "--repeats", "2", "-o", "e.json")
    assert status == 0, capsys.readouterr().err
    assert set(json.loads(Path("e.json").read_text())["device"]["rates"]) == {"float32", "bfloat16"}


def test_a_report_finds_what_was_scripted(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.serve("--concurrency", "2", "--requests", "6", "-o", "r.json") == 0
    out, err = capsys.readouterr()
    assert "Serving Benchmark Result" in out
    assert "\nload\tok\tfailed\t" in out
    assert "Traceback" not in err
    (run,) = json.loads(Path("r.json").read_text())["runs"]
    summary = run["summary"]
    assert summary["succeeded"] == summary["requests"] > 0
    assert summary["underruns"]["count"] == summary["succeeded"]
    assert summary["underruns"]["longest"] > 0.1
    assert summary["buffered"]["count"] == 0
    assert summary["length"]["mean"] == pytest.approx(0.36)
    assert len([trace for trace in run["traces"] if trace["measured"]]) == summary["requests"]
    assert all(len(trace["arrivals"]) == 2 for trace in run["traces"])


def test_programs_get_json_and_a_key_is_never_written(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.serve("--rate", "20", "--api-key", "sesame", "--json", "-o", "r.json", "--note", "by hand") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["runs"][0]["load"]["mode"] == "open"
    assert told["conditions"]["note"] == "by hand"
    assert "sesame" not in Path("r.json").read_text()
    assert "sesame" not in json.dumps(told)


def test_as_on_a_gpu_the_engine_has_a_process_of_its_own_and_tells_its_slots(bench: Bench) -> None:
    bench.monkeypatch.setattr(tts, "placement", lambda *_: (torch.device("cuda"), torch.float32))  # here alone
    asked = ("--in-process", "--device", "cpu", "--rate", "4", "--seconds", "2", "--warmup", "0", "--frames", "4")
    assert bench("serve", *asked, "-o", "r.json") == 0
    told = json.loads(Path("r.json").read_text())
    assert told["conditions"]["engine"]["max_streams"] == CPU_SLOTS
    assert told["runs"][0]["summary"]["failed"] == 0
    assert told["runs"][0]["summary"]["length"]["mean"] == pytest.approx(0.32)


def test_a_recogniser_of_any_kind_gives_word_errors(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.txt").write_text("Nobody came.\n")
    Path("hear.py").write_text("import sys\nfor line in sys.stdin:\n    print('nobody sang', flush=True)\n")
    asked = ("--seconds", "30", "--concurrency", "2", "--requests", "4", "--texts", "one.txt", "-o", "r.json")
    assert bench.serve(*asked, "--wer", f"{sys.executable} hear.py", "--wer-requests", "3") == 0
    assert re.search(r"^Word error rate \(%\): +50\.00$", capsys.readouterr().out, re.MULTILINE)
    (run,) = json.loads(Path("r.json").read_text())["runs"]
    assert (run["summary"]["wer"], run["summary"]["heard"]) == (0.5, 3)
    assert [trace["heard"] for trace in run["traces"] if trace["heard"]] == ["nobody sang"] * 3
    assert not any("sound" in trace for trace in run["traces"])


def test_what_was_measured_is_kept_where_the_recogniser_fails(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--requests", "1", "-o", "r.json", "--wer", f"{sys.executable} -c exit(3)")
    assert bench.serve(*asked) == 1
    assert "recogniser ended with status 3" in capsys.readouterr().err.replace("\n", " ")
    assert json.loads(Path("r.json").read_text())["runs"][0]["summary"]["succeeded"] == 1


def test_capacity_names_what_broke_first(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--base-url", bench.server.address, *SHORT, "--most", "2", "--requests", "2")
    assert bench("capacity", "--slo", "buffered_underrun=0", *options) == 0
    assert "2 streams at once hold" in capsys.readouterr().out
    by_rate = ("--by", "rate", "--first", "20", "--most", "40", "--json")
    assert bench("capacity", "--slo", "underrun=0,e2e_p99=9s", *options[:-4], *by_rate) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["holds"] is None
    assert told["breaks"] == 12.5  # below it five requests would not be due in 0.4 s
    assert [breach.split()[0] for breach in told["broke_first"]] == ["underrun"]


def test_capacity_draws_what_it_tried_and_hears_the_load_that_held(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("one.txt").write_text("Nobody came.\n")
    Path("hear.py").write_text("import sys\nfor line in sys.stdin:\n    print('nobody sang', flush=True)\n")
    asked = ("--most", "2", "--requests", "2", "--texts", "one.txt", "-o", "r.json", "--plot", "c.html")
    heard = ("--wer", f"{sys.executable} hear.py", "--wer-requests", "1")
    assert bench(
        "capacity", "--base-url", bench.server.address, "--slo", "buffered_underrun=0", *SHORT, *asked, *heard
    ) == 0  # fmt: skip
    assert "2 streams at once hold" in (out := capsys.readouterr().out)
    assert "50.0% of the words were misheard" in out
    page = Path("c.html").read_text()
    assert page.count("<svg") == 6  # the search, the bound, and the four of serve
    assert "Loads in the order they were tried" in page
    assert "held, 0 to 2 streams at once" in page
    assert "buffered_underrun ≤ 0" in page
    written = json.loads(Path("r.json").read_text())
    assert written["conditions"]["slo"] == "buffered_underrun=0"
    assert [run["summary"]["wer"] for run in written["runs"]] == [None, 0.5]


def test_both_ways_to_measure_take_the_same_options(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.monkeypatch.setenv("COLUMNS", "200")
    found = []
    for command in ("serve", "capacity"):
        assert bench(command, "--help") == 0
        found.append(set(re.findall(r"--[a-z-]+", capsys.readouterr().out)))
    serve, capacity = found
    assert serve - capacity == {"--concurrency", "--rate"}
    assert capacity - serve == {"--slo", "--by", "--first", "--most", "--precision"}
    assert {"--wer", "--plot", "--output", "--request-seeds"} <= serve


def test_nobody_there_is_an_exit_status_and_a_reason(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("serve", "--base-url", "http://127.0.0.1:9", *SHORT, "--requests", "1") == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "no request succeeded (connect:" in err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("serve",), "--in-process"),
        (("serve", "--base-url", "http://h", "--in-process"), "--in-process"),
        (("serve", "--base-url", "nowhere"), "http://127.0.0.1:8000"),
        (("serve", "--base-url", "http://h", "--protocol", "ftp"), "http, sse, ws"),
        (("serve", "--base-url", "http://h", "--format", "mp3"), "pcm, wav"),
        (("serve", "--base-url", "http://h", "--extra-body", "[1]"), "a JSON object"),
        (("serve", "--base-url", "http://h", "--frames", "5"), "--in-process"),
        (("serve", "--base-url", "http://h", "--concurrency", "a"), "1,2,4"),
        (("serve", "--base-url", "http://h", "--concurrency", "1.5"), "whole number"),
        (("serve", "--base-url", "http://h", "--concurrency", "nan"), "whole number"),
        (("serve", "--base-url", "http://h", "--rate", "inf"), "a rate above 0"),
        (("serve", "--base-url", "http://h", "--seconds", "inf"), "more than 0"),
        (("serve", "--base-url", "http://h", "--max-in-flight", "0"), "1 or more"),
        (("serve", "--base-url", "http://h", "--start-buffer", "nan"), "0 or more"),
        (("serve", "--base-url", "http://h", "--plot", "x.gif"), ".html"),
        (("serve", "--base-url", "http://h", "-o", "no/such/x.json"), "written"),
        (("serve", "--base-url", "http://h", "--texts", "none.txt"), "one text"),
        (("serve", "--base-url", "http://h", "--wer", "no-such-program"), "can be run"),
        (("serve", "--base-url", "http://h", "--wer", "'"), "can be run"),
        (("serve", "--in-process", "--model", "0.6B"), "frames"),
        (("serve", "--in-process", "--tokens", "5"), "tokenizer"),
        (("capacity", "--base-url", "http://h", "--slo", "speed=1"), "ttfa"),
        (("capacity", "--base-url", "http://h", "--by", "hand"), "concurrency, rate"),
        (("capacity", "--base-url", "http://h", "--first", "8", "--most", "4"), "8 or more"),
        (("capacity", "--base-url", "http://h", "--plot", "x.gif"), ".html"),
        (("compare", "a.json", "b.json"), "a result of"),
        (("engine", "--batch", "0"), "1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(
    bench: Bench, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], part: str
) -> None:
    assert bench(*arguments) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "error: " in err
    assert part in err
    assert "Traceback" not in err
