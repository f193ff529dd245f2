# SPDX-License-Identifier: Apache-2.0
"""What the scheduler knows of streams as arrays with one row per slot: a step reads and writes all streams at once."""

from math import inf

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class StreamArrays:
    """The values of streams by row. A stream without a slot is the only row of arrays of its own.

    Values are plain numbers; moments that have not come yet are `inf`. The methods have one value per row.
    """

    def __init__(self, num_rows: int) -> None:
        def floats(value: float) -> Floats:
            return np.full(num_rows, value)

        def ints() -> Ints:
            return np.zeros(num_rows, np.int64)

        def bools() -> Bools:
            return np.zeros(num_rows, np.bool_)

        # Copies of what does not change while a stream has a slot
        self.active = bools()  # a stream has this slot
        self.id, self.arrived_at, self.live, self.prompt_rows = ints(), floats(0.0), bools(), ints()
        self.utterance_row = ints()  # of `UtteranceTable`
        self.ended = bools()  # written by `StreamTable.transition`
        # Progress, in prompt rows and frames
        self.max_frames = ints()
        self.text_bytes = ints()  # of the text so far
        self.paged_frames = ints()  # frames for which the stream has KV pages
        self.prefilled = ints()
        self.started = ints()  # frame steps launched
        self.generated = ints()  # frames known to be speech
        self.decoding = ints()  # frames in codec calls that have not completed
        self.decoded = ints()
        self.undelivered = ints()  # decoded frames that wait for more, to be delivered as one chunk
        self.first_chunk = ints()  # frames; 0: chosen on admission
        self.text_frames = floats(inf)  # frames that have text; later ones wait for it
        # Frames that fit into the reader's buffer; undelivered ones count as if they were in it.
        self.buffer_free = floats(inf)
        self.last_step = ints()  # number of the last step that uses the slot
        # Playback
        self.plays_at = floats(-inf)  # when the player needs the first audio: after the segment before it
        self.first_audio_at = floats(inf)
        self.delivered_seconds = floats(0.0)  # of audio
        self.deadline = floats(0.0)  # when the player's buffer is empty
        self.underruns = ints()
        # Gaps that the client causes are no underruns: the frames started when the text ran out, and a full buffer.
        self.text_gap = floats(inf)
        self.reader_gap = bools()
        self.reader_deadline = floats(inf)  # when a full buffer times out
        self.text_deadline = floats(inf)  # when the wait for text times out

    @classmethod
    def of_one_stream(cls) -> "StreamArrays":
        """One row with the initial values: a copy, which takes a tenth of the time."""
        arrays = object.__new__(cls)
        arrays.__dict__ = {name: values.copy() for name, values in vars(_INITIAL).items()}
        return arrays

    def copy_row(self, row: int, source: "StreamArrays", source_row: int) -> None:
        values = vars(source)
        for name, target in vars(self).items():
            target[row] = values[name][source_row]

    def view(self, rows: slice) -> "StreamArrays":
        """Some of the rows, in the same memory."""
        view = object.__new__(StreamArrays)
        view.__dict__ = {name: values[rows] for name, values in vars(self).items()}
        return view

    def prompt_left(self) -> Ints:
        """Rows to prefill; the last row of the prompt belongs to the first frame."""
        return self.prompt_rows - 1 - self.prefilled

    def available(self) -> Ints:
        """Generated frames that are in no codec call yet."""
        return self.generated - self.decoded - self.decoding

    def needs_text(self) -> Bools:
        """No frame can be generated before more text arrives."""
        return (self.text_frames <= self.started) & (self.started < self.max_frames) & ~self.ended

    def needs_frames(self) -> Bools:
        """The player waits for the engine, not for text or its reader."""
        drained = self.ended & (self.decoded >= self.generated)
        return ~(self.reader_gap | (self.text_gap < inf) | drained)

    def is_starting(self, now: float) -> Bools:
        """The player has nothing to play: at the beginning, or after a gap that the client caused."""
        after_gap = (self.reader_gap | (self.text_gap < inf)) & (self.deadline <= now)
        return self.live & np.where(self.first_audio_at < inf, after_gap, self.plays_at <= now)

    def lead(self, now: float) -> Floats:
        """Seconds until the player's buffer is empty; infinite for a file."""
        playing = np.where(self.first_audio_at < inf, self.deadline - now, np.maximum(self.plays_at - now, 0.0))
        return np.where(self.live, playing, inf)

    def urgency(self, now: float) -> Floats:
        """Sort key, the smallest first: starting streams, then by lead, then files."""
        return np.where(self.is_starting(now), -inf, self.lead(now))


_INITIAL = StreamArrays(1)
