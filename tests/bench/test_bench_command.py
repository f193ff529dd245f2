# SPDX-License-Identifier: Apache-2.0
"""polyvox bench from the command line; every command of docs/benchmark.md, with short durations."""

import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.fake_server import FakeServer, Script, serving, tone
from polyvox import tts
from polyvox.bench import model_calls
from polyvox.bench.roofline import DevicePeaks
from polyvox.cli.main import main
from polyvox.engine.memory import MAX_CPU_STREAMS
from polyvox.models.qwen3_tts import family, synthetic

pytestmark = pytest.mark.slow

BENCHMARK_PAGE = Path(__file__).parents[2] / "docs/benchmark.md"
PERFORMANCE_PAGE = BENCHMARK_PAGE.with_name("performance.md")
FAKE_ASR = """
class load_model:
    def __init__(self, name): ...
    def recognize(self, path): return open(path, "rb").read(4).decode()
"""
TRANSCRIBER = "import sys\nfor line in sys.stdin:\n    print('nothing sang', flush=True)\n"
SHORT = ("--seconds", "0.4", "--warmup", "0.1", "--repeats", "1")


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    # The second chunk is 240 ms late without a buffer: a large margin, as test machines are slow.
    with serving(FakeServer(default=Script([(0.01, tone(60)), (0.3, tone(300))]))) as served:
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


def test_the_commands_of_the_benchmark_page_run(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = BENCHMARK_PAGE.read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (transcriber,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    Path("transcribe.py").write_text(transcriber)
    Path("onnx_asr.py").write_text(FAKE_ASR)  # imported before an installed package
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
        out, err = capsys.readouterr()
        if "--wer" in arguments:
            assert "Word error rate" in out
        expected = 1 if arguments[0] == "capacity" else 0  # this server has underruns at any load
        assert status == expected, (command, err)
    assert Path("a.html").read_text().count("<svg") == 4
    assert Path("engine.html").read_text().count("<svg") == 3


def test_the_commands_of_the_performance_page_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PERFORMANCE_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [
        shlex.split(re.sub(r"http://127.0.0.1:\d+", bench.server.address, line))
        for line in "".join(blocks).splitlines()
    ]
    assert [line[:3] for line in lines] == [["polyvox", "bench", "serve"]]
    for _, _, *arguments in lines:
        assert bench(*arguments, *SHORT) == 0, capsys.readouterr().err
    assert Path("server.png").stat().st_size > 10_000
    assert "<svg" in Path("server.html").read_text()


def test_engine_measures_the_peak_of_every_dtype_of_the_model(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = synthetic.random_model(synthetic.tiny_files("custom_voice"), torch.device("cpu"), torch.float32)
    model.codec.narrow(torch.bfloat16)  # its codebooks stay float32, as on a GPU
    monkeypatch.setattr(family, "random_model", lambda *_, **__: model)
    status = bench("engine", "--model", "0.6B", "--batch", "1", "--context", "16", "--repeats", "2", "-o", "e.json")
    assert status == 0, capsys.readouterr().err
    assert set(json.loads(Path("e.json").read_text())["device"]["rates"]) == {"float32", "bfloat16"}


@pytest.mark.parametrize(
    ("error", "expected"), [(torch.OutOfMemoryError("no memory for batch 2"), 1), (KeyboardInterrupt(), 130)]
)
def test_engine_prints_the_sizes_before_one_that_fails(
    error: BaseException,
    expected: int,
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(*_: object) -> Iterator[model_calls.CallTiming]:
        yield model_calls.CallTiming("frame", 1, 16, 0.01, 0.0123, 0.05, 1, 1, 1, 0.003)
        raise error

    model = synthetic.random_model(synthetic.tiny_files("custom_voice"), torch.device("cpu"), torch.float32)
    monkeypatch.setattr(family, "random_model", lambda *_, **__: model)
    monkeypatch.setattr(model_calls, "measure_calls", measured)
    try:
        status = bench("engine", "--model", "0.6B", "--batch", "1,2", "--context", "16")
    except torch.OutOfMemoryError:
        status = 1
    assert status == expected
    assert "frame\t1\t16\t12.30" in capsys.readouterr().out


def test_engine_measures_a_model_with_quantised_weights(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = synthetic.random_model(synthetic.tiny_files("custom_voice"), torch.device("cpu"), torch.float32)
    monkeypatch.setattr(family, "random_model", lambda *_, **__: model)
    monkeypatch.setattr(model_calls, "model_peaks", lambda _: DevicePeaks("test", 1e9, {torch.float32: 1e9}))
    arguments = ("--model", "0.6B", "--weight-dtype", "int8", "--batch", "1", "--context", "16", "--repeats", "2")
    assert bench("engine", *arguments, "-o", "e.json") == 0, capsys.readouterr().err
    assert json.loads(Path("e.json").read_text())["weight_dtype"] == "int8"
    assert model.talker.codec_head.weight.dtype == torch.int8


def test_a_report_contains_the_scripted_measurements(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.serve("--concurrency", "2", "--num-prompts", "6", "-o", "r.json") == 0
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


def test_json_output_and_result_files_do_not_contain_the_api_key(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.serve("--rate", "20", "--api-key", "sesame", "--json", "-o", "r.json", "--note", "by hand") == 0
    out = capsys.readouterr().out
    result = json.loads(out)
    assert result["runs"][0]["load"]["mode"] == "open"
    assert result["conditions"]["note"] == "by hand"
    assert "sesame" not in Path("r.json").read_text()
    assert "sesame" not in out


def test_on_a_gpu_the_engine_runs_in_its_own_process_and_reports_its_size(bench: Bench) -> None:
    # Patched in this process only: the engine's process still uses the CPU.
    bench.monkeypatch.setattr(tts, "placement", lambda *_: (torch.device("cuda"), torch.float32))
    options = ("--in-process", "--device", "cpu", "--rate", "4", "--seconds", "2", "--warmup", "0", "--frames", "4")
    assert bench("serve", *options, "-o", "r.json") == 0
    result = json.loads(Path("r.json").read_text())
    assert result["conditions"]["engine"]["max_streams"] == MAX_CPU_STREAMS
    assert result["runs"][0]["summary"]["failed"] == 0
    assert result["runs"][0]["summary"]["length"]["mean"] == pytest.approx(0.32)


def test_an_external_recogniser_gives_the_word_error_rate(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.txt").write_text("Nothing came.\n")
    Path("transcribe.py").write_text(TRANSCRIBER)
    options = ("--seconds", "30", "--concurrency", "2", "--num-prompts", "4", "--texts", "one.txt", "-o", "r.json")
    assert bench.serve(*options, "--wer", f"{sys.executable} transcribe.py", "--wer-requests", "3") == 0
    assert re.search(r"^Word error rate \(%\): +50\.00$", capsys.readouterr().out, re.MULTILINE)
    (run,) = json.loads(Path("r.json").read_text())["runs"]
    assert (run["summary"]["wer"], run["summary"]["transcribed"]) == (0.5, 3)
    assert [trace["transcript"] for trace in run["traces"] if trace["transcript"]] == ["nothing sang"] * 3
    assert not any("pcm" in trace for trace in run["traces"])


def test_results_are_saved_if_the_recogniser_fails(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--num-prompts", "1", "-o", "r.json", "--wer", f"{sys.executable} -c exit(3)")
    assert bench.serve(*options) == 1
    assert "Recogniser exited with status 3" in capsys.readouterr().err.replace("\n", " ")
    assert json.loads(Path("r.json").read_text())["runs"][0]["summary"]["succeeded"] == 1


def test_capacity_names_the_first_violation(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--base-url", bench.server.address, *SHORT, "--max-load", "2", "--num-prompts", "2")
    assert bench("capacity", "--slo", "buffered_underrun=0", *options) == 0
    assert "2 concurrent streams meet" in capsys.readouterr().out
    by_rate = ("--by", "rate", "--initial-load", "20", "--max-load", "40", "--json")
    assert bench("capacity", "--slo", "underrun=0,e2e_p99=9s", *options[:-4], *by_rate) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["max_passing"] is None
    assert result["min_failing"] == 12.5  # a lower rate gives fewer than five requests in 0.4 s
    assert [violation.split()[0] for violation in result["first_violations"]] == ["underrun"]


def test_capacity_plots_the_search_and_transcribes_the_highest_passing_load(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("one.txt").write_text("Nothing came.\n")
    Path("transcribe.py").write_text(TRANSCRIBER)
    target = ("--base-url", bench.server.address, "--slo", "buffered_underrun=0", *SHORT)
    options = ("--max-load", "2", "--num-prompts", "2", "--texts", "one.txt", "-o", "r.json", "--plot", "c.html")
    wer = ("--wer", f"{sys.executable} transcribe.py", "--wer-requests", "1")
    assert bench("capacity", *target, *options, *wer) == 0
    out = capsys.readouterr().out
    assert "2 concurrent streams meet" in out
    assert "Word error rate at that load: 50.0%" in out
    page = Path("c.html").read_text()
    assert page.count("<svg") == 6  # the search, the objective, and the four of serve
    assert "Loads in the order of the search" in page
    assert "SLO met" in page
    assert "buffered_underrun ≤ 0" in page
    result = json.loads(Path("r.json").read_text())
    assert result["conditions"]["slo"] == "buffered_underrun=0"
    assert [run["summary"]["wer"] for run in result["runs"]] == [None, 0.5]


def test_serve_and_capacity_share_their_options(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.monkeypatch.setenv("COLUMNS", "200")
    found = []
    for command in ("serve", "capacity"):
        assert bench(command, "--help") == 0
        found.append(set(re.findall(r"--[a-z-]+", capsys.readouterr().out)))
    serve, capacity = found
    assert serve - capacity == {"--concurrency", "--listeners", "--rate"}
    assert capacity - serve == {"--slo", "--by", "--initial-load", "--max-load", "--precision"}
    assert {"--wer", "--plot", "--output", "--request-seeds"} <= serve


def test_a_server_that_is_down_ends_the_benchmark_before_its_first_request(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    assert bench("serve", "--base-url", url, "-o", "a.json") == 1
    out, err = capsys.readouterr()
    reason = f"Cannot connect to {url}: connection refused. Start the server with: polyvox serve --port {port}"
    assert (out, err) == ("", f"error: {reason}\n")
    assert not Path("a.json").exists()


def test_a_benchmark_without_a_successful_request_prints_the_reason_and_no_report(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.serve("--endpoint", "/nowhere", "--num-prompts", "1", "--plot", "a.html") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no request succeeded (" in " ".join(err.split())
    assert not Path("a.html").exists()


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
        (("serve", "--base-url", "http://h", "--concurrency", "1.5"), "positive integer"),
        (("serve", "--base-url", "http://h", "--concurrency", "nan"), "positive integer"),
        (("serve", "--base-url", "http://h", "--rate", "inf"), "above 0"),
        (("serve", "--base-url", "http://h", "--seconds", "inf"), "above 0"),
        (("serve", "--base-url", "http://h", "--max-in-flight", "0"), "at least 1"),
        (("serve", "--base-url", "http://h", "--start-buffer", "nan"), "at least 0"),
        (("serve", "--base-url", "http://h", "--plot", "x.gif"), ".html"),
        (("serve", "--base-url", "http://h", "-o", "no/such/x.json"), "writable"),
        (("serve", "--base-url", "http://h", "--texts", "none.txt"), "one text"),
        (("serve", "--base-url", "http://h", "--wer", "no-such-program"), "command on the PATH"),
        (("serve", "--base-url", "http://h", "--wer", "'"), "command on the PATH"),
        (("serve", "--base-url", "http://127.0.0.1:99999"), "a valid port"),
        (("serve", "--in-process", "--format", "mp3"), "'--format': requires --base-url (got 'mp3')."),
        (("serve", "--in-process", "--text-rate", "5"), "'--text-rate': requires --base-url (got 5.0)."),
        (("serve", "--in-process", "--model", "0.6B"), "frames"),
        (("serve", "--in-process", "--tokens", "5"), "tokenizer"),
        (("capacity", "--base-url", "http://h", "--slo", "speed=1"), "ttfa"),
        (("capacity", "--base-url", "http://h", "--by", "hand"), "concurrency, listeners, rate"),
        (
            ("capacity", "--base-url", "http://h", "--initial-load", "8", "--max-load", "4"),
            "--initial-load, which is 8",
        ),
        (("capacity", "--base-url", "http://h", "--plot", "x.gif"), ".html"),
        (("compare", "a.json", "b.json"), "cannot be read: No such file"),
        (("engine", "--batch", "0"), "positive integer"),
    ],
)
def test_invalid_options_are_rejected_with_one_sentence(
    bench: Bench, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], part: str
) -> None:
    assert bench(*arguments) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert "error: " in err
    assert part in err
    assert "Traceback" not in err
