# SPDX-License-Identifier: Apache-2.0
"""What each script of this folder prints: the version of a client and its times, as one line of JSON.

The scripts run in the environments of the clients, old and new ones, so they import nothing of Polyvox.
"""

import json
import sys
import time
from importlib.metadata import version

TEXT = (
    "The ferry left the harbour a little after six. Nobody said a word about the weather. "
    "Two gulls followed us as far as the lighthouse, and then they turned back."
)
MIN_BYTES = 20_000  # of any format


def words():
    """The text as a language model streams it."""
    for word in TEXT.split(" "):
        yield word + " "


class Measurement:
    """Times of one utterance: from the construction to the first audio and to the end."""

    def __init__(self):
        self._start = time.monotonic()
        self._first = None
        self._num_bytes = 0

    def add(self, audio):
        """A piece of audio, at the moment the client delivers it."""
        if audio and self._first is None:
            self._first = time.monotonic() - self._start
        self._num_bytes += len(audio)

    def report(self, package, notes=""):
        """Print the result. The script fails if there was too little audio."""
        end = time.monotonic() - self._start
        if self._num_bytes < MIN_BYTES or self._first is None:
            sys.exit(f"only {self._num_bytes} bytes of audio were received")
        found = {"version": version(package), "first": self._first, "end": end, "notes": notes}
        sys.stdout.write(json.dumps(found) + "\n")
