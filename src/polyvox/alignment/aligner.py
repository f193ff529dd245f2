# SPDX-License-Identifier: Apache-2.0
"""Aligns the text of a segment with its audio while both still arrive.

A segmental hidden Markov model: the text is a sequence of states (letters and pauses), each of which lasts some frames.
The Viterbi algorithm finds the best sequence for the audio so far, one frame at a time.
"""

import numpy as np
from numpy.typing import NDArray

from polyvox.alignment.features import NUM_FEATURES, SpeechFeatures
from polyvox.alignment.sound_model import (
    CONTEXT,
    LEAD,
    MAX_FRAMES,
    SILENT,
    SYMBOLS,
    TAIL,
    load_sound_model,
    symbol_of,
    with_context,
)
from polyvox.audio.samples import Samples
from polyvox.text.phonemes.inline_phonemes import MARK_CLOSE, MARK_MIDDLE

IMPOSSIBLE = -1e9
# Log-probability of each frame beyond the table of durations: of sounds, of pauses, and of silence before the first
# word, which is trimmed.
LONGER, LONGER_SILENCE, LONGER_LEAD = -0.7, -0.05, -3.0
QUIET = -6.0  # level of silence, relative to the loudest frame
MIN_PAUSE = 4  # frames of silence, longer than before a plosive
MAX_SKIPS = 3  # silent letters in a row
SKIP, STAY = 0, -1  # in the table of decisions; other numbers are durations
BEFORE, AFTER = -min(CONTEXT), max(CONTEXT)


class SegmentAligner:
    """Start times of the characters of one segment. `extend` and `push` in any order, then `finish`."""

    def __init__(self, sample_rate: int, speed: float = 1.0) -> None:
        self._model = load_sound_model()
        self._features = SpeechFeatures(sample_rate, speed)
        self.frame_seconds = self._features.frame_samples / sample_rate
        self._frames = np.zeros((0, NUM_FEATURES), np.float32)  # for the context of the next frames
        self._num_context = 0  # of them are before the next frame
        self._symbols: list[int] = []
        self._num_chars, self._in_phonemes = 0, False
        self.char_states: list[int] = []  # the state at which each character starts
        self._num_frames = 0
        self._num_quiet = 0  # frames of silence up to now
        self._best = np.zeros(0)  # score of each state if it ends at the last frame
        self._stayed = np.zeros(0)  # the same, if it lasted longer than the table of durations
        self._sums = np.zeros(0)  # of the scores of each state over all frames
        # [states, frames]: score of entering each state after the last frames, the newest first, less its sums then.
        self._entries = np.zeros((0, MAX_FRAMES))
        self._decisions = np.zeros((64, 0), np.int8)  # [frames, states]: how the best end of a state came about
        self._add_states([LEAD])

    def extend(self, text: str, complete: bool) -> None:
        """More text. complete: nothing follows."""
        states: list[str] = []
        for char in text:
            self.char_states.append(len(self._symbols) + len(states))
            if char == MARK_CLOSE:
                self._in_phonemes = False
            elif char == MARK_MIDDLE:
                self._in_phonemes = True
            elif not self._in_phonemes and (symbol := symbol_of(char)) is not None:
                states.append(symbol)
        self._add_states([*states, TAIL] if complete else states)

    def push(self, samples: Samples) -> None:
        self._read(self._features.push(samples), at_end=False)

    def finish_audio(self) -> None:
        """The audio is complete."""
        self._read(self._features.finish(), at_end=True)

    def partial_starts(self, first: int) -> NDArray[np.int64]:
        """Start frames of the states from `first` on that have begun by now."""
        if not self._num_frames:
            return np.zeros(0, np.int64)
        # Column n of the entries: the state has lasted n frames so far.
        running = self._entries[:, 1:] + self._remaining[:, : MAX_FRAMES - 1]
        lengths = running.argmax(1)
        best = running[self._rows, lengths] + self._sums
        scores = np.maximum(best, self._stayed)
        if self._num_quiet >= MIN_PAUSE:  # the next word has not begun
            scores = np.where(self._is_silent, scores, IMPOSSIBLE)
        state = int(np.argmax(scores))
        if state < first or scores[state] <= IMPOSSIBLE / 2:
            return np.zeros(0, np.int64)
        if self._stayed[state] > best[state]:
            return self._trace(first, state + 1, self._num_frames - 1)[:-1]
        return self._trace(first, state, self._num_frames - int(lengths[state]) - 1)

    def final_starts(self, first: int) -> NDArray[np.int64]:
        """Start frames of all states from `first` on, if the audio ends with the last one; empty if it cannot."""
        if not self._num_frames or self._best[-1] <= IMPOSSIBLE / 2:
            return np.zeros(0, np.int64)
        return self._trace(first, len(self._symbols), self._num_frames)[:-1]

    def expected_frames(self, first: int, last: int) -> float:
        """Mean duration of a range of states."""
        return float(self._model.mean_frames[self._indices[first:last]].sum())

    @property
    def symbols(self) -> NDArray[np.int64]:
        """The symbol of each state."""
        return self._indices

    @property
    def num_states(self) -> int:
        return len(self._symbols)

    @property
    def num_frames(self) -> int:
        return self._num_frames

    def _add_states(self, symbols: list[str]) -> None:
        """States that the audio so far does not contain."""
        if not symbols:
            return
        is_first = not self._symbols
        self._symbols += [SYMBOLS.index(symbol) for symbol in symbols]
        indices = np.array(self._symbols)
        self._indices, self._rows = indices, np.arange(len(indices))
        durations = self._model.durations[indices].astype(np.float64)
        self._skips, self._durations = durations[:, 0], np.ascontiguousarray(durations[:, 1:])  # [states, MAX_FRAMES]
        # Probability of this number of frames or more.
        remaining = np.cumsum(np.exp(self._durations[:, ::-1]), 1)[:, ::-1]
        self._remaining = np.log(remaining + 1e-9)
        self._is_silent = np.isin(indices, [SYMBOLS.index(symbol) for symbol in SILENT])
        self._longer = np.where(self._is_silent, LONGER_SILENCE, LONGER)
        self._longer[0] = LONGER_LEAD
        num_new = len(symbols)
        self._sums = np.concatenate([self._sums, np.zeros(num_new)])
        self._best = np.concatenate([self._best, np.full(num_new, IMPOSSIBLE)])
        self._entries = np.concatenate([self._entries, np.full((num_new, MAX_FRAMES), IMPOSSIBLE)])
        self._decisions = np.concatenate([self._decisions, np.zeros((len(self._decisions), num_new), np.int8)], 1)
        self._stayed = np.concatenate([self._stayed, np.full(num_new, IMPOSSIBLE)])
        if is_first:
            self._entries[0, 0] = 0.0
            self._best[0] = self._skips[0]
        self._skip(self._num_frames)
        self._entries[1:, 0] = self._best[:-1] - self._sums[1:]

    def _read(self, frames: NDArray[np.float32], at_end: bool) -> None:
        self._frames = np.concatenate([self._frames, frames])
        num_ready = len(self._frames) - self._num_context - (0 if at_end else AFTER)
        if num_ready <= 0:
            return
        first = self._num_context
        scores = self._model.scores(with_context(self._frames)[first : first + num_ready]).astype(np.float64)
        for row, level in zip(scores[:, self._indices], self._frames[first:, 0], strict=False):
            self._step(row)
            self._num_quiet = self._num_quiet + 1 if level < QUIET else 0
        self._num_context = min(BEFORE, first + num_ready)
        self._frames = self._frames[first + num_ready - self._num_context :]

    def _step(self, scores: NDArray[np.float64]) -> None:
        """One frame."""
        self._num_frames += 1
        if self._num_frames >= len(self._decisions):
            self._decisions = np.concatenate([self._decisions, np.zeros_like(self._decisions)])
        self._sums += scores
        ended = self._entries + self._durations
        lengths = ended.argmax(1)
        best = ended[self._rows, lengths] + self._sums
        self._stayed = self._best + scores + self._longer
        is_longer = self._stayed > best
        self._best = np.where(is_longer, self._stayed, best)
        self._decisions[self._num_frames] = np.where(is_longer, STAY, lengths + 1)
        self._skip(self._num_frames)
        self._entries[:, 1:] = self._entries[:, :-1]
        self._entries[0, 0] = IMPOSSIBLE
        self._entries[1:, 0] = self._best[:-1] - self._sums[1:]

    def _skip(self, frame: int) -> None:
        """States that may last no time."""
        before, rest = self._best.copy(), self._best[1:]
        for _ in range(MAX_SKIPS):
            np.maximum(rest, self._best[:-1] + self._skips[1:], out=rest)
        self._decisions[frame][self._best > before] = SKIP

    def _trace(self, first: int, state: int, frame: int) -> NDArray[np.int64]:
        """Start frames of the states `first` to `state`, which starts at `frame`."""
        starts = np.zeros(max(0, state - first + 1), np.int64)
        while state >= first:
            starts[state - first] = frame
            state -= 1
            if state < 0:
                break
            while frame > 0 and (length := int(self._decisions[frame, state])) == STAY:
                frame -= 1
            if frame > 0:
                frame -= length
        return starts
