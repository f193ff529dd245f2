"""How many listeners one machine keeps fed: python benchmarks/streams.py [--streams 1,2,4,8]

Closed loop on the engine in this process: so many streams at once, a new one for each that ends, every reader a player
that begins with its first chunk and has no other buffer. Underruns are the player's, not the engine's own count.
"""

import argparse
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field

from polyvox.engine.config import EngineConfig
from polyvox.models.request import Request
from polyvox.tts import TTS, load

SENTENCES = (
    "Good morning, the train to the harbour leaves at nine.",
    "Please call me back when you have a minute to talk.",
    "The meeting was moved to Thursday, so we have more time to prepare.",
    "I have put the keys on the table next to the blue cup.",
)


@dataclass
class Heard:
    """What the players of one run heard."""

    first_audio: list[float] = field(default_factory=list)
    audio: float = 0.0
    underruns: int = 0
    longest_gap: float = 0.0
    finished: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def listen(tts: TTS, sentence: str, voice: str, heard: Heard) -> None:
    """One player: hears a sentence to its end and notes when it ran dry."""
    began = time.perf_counter()
    dry = None
    gaps = []
    seconds = 0.0
    for chunk in tts.engine.submit(Request(sentence, voice, seed=1)).chunks(60):
        now = time.perf_counter()
        if dry is None:
            first, dry = now - began, now
        elif now > dry and len(chunk.samples):
            gaps.append(now - dry)
            dry = now
        dry += len(chunk.samples) / tts.sample_rate
        seconds += len(chunk.samples) / tts.sample_rate
    with heard.lock:
        heard.first_audio.append(first)
        heard.audio += seconds
        heard.underruns += len(gaps)
        heard.longest_gap = max([heard.longest_gap, *gaps])
        heard.finished += 1


def run(tts: TTS, streams: int, seconds: float) -> tuple[Heard, float]:
    """So many players at once, each with one sentence after the other, for so long."""
    heard = Heard()
    began = time.perf_counter()

    def player(number: int) -> None:
        turn = number
        while time.perf_counter() - began < seconds:
            listen(tts, SENTENCES[turn % len(SENTENCES)], tts.voices[turn % len(tts.voices)], heard)
            turn += 1

    threads = [threading.Thread(target=player, args=(i,)) for i in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="a checkpoint; by default the embedded voice")
    parser.add_argument("--streams", default="1,2,3,4,6,8", help="how many at once, with commas")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    options = parser.parse_args()
    counts = [int(count) for count in options.streams.split(",")]
    config = EngineConfig(slots=max(counts), queue=max(counts), queue_seconds=60)
    with load(options.model, config=config) as tts:
        run(tts, 1, 2.0)  # warm
        sys.stdout.write(f"capacity by the engine's own cost model: {tts.engine.scheduler.capacity()}\n")
        sys.stdout.write("streams  first audio p50, p95, ms  underruns  longest gap, ms  audio s/s\n")
        for count in counts:
            heard, took = run(tts, count, options.seconds)
            firsts = sorted(heard.first_audio)
            p95 = firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))]
            sys.stdout.write(
                f"{count:>7}  {statistics.median(firsts) * 1e3:>15.0f}  {p95 * 1e3:>8.0f}  "
                f"{heard.underruns:>4} of {heard.finished:<4} {heard.longest_gap * 1e3:>10.0f}  "
                f"{heard.audio / took:>14.2f}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
