# SPDX-License-Identifier: Apache-2.0
"""Clients of the sockets that send anything at all, in any order, and go when they like."""

import json
import random
from collections import Counter
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed

from ipc.engine_processes import eventually
from server.fakes import PausableEngine
from server.live_server import RunningServer
from server.websocket_clients import WebSocketClient, connect_websocket

PATHS = (
    "/v1/audio/speech/stream",
    "/v1/text-to-speech/heart/stream-input?output_format=pcm_24000",
    "/v1/text-to-speech/michael/multi-stream-input?output_format=mp3_22050_32&auto_mode=true",
    "/tts/websocket",
    "/v1/speak?encoding=linear16",
)
NAMES: tuple[str, ...] = (
    "type",
    "text",
    "context_id",
    "contextId",
    "flush",
    "close_context",
    "voice_settings",
    "xi_api_key",
    "seed",
    "transcript",
    "continue",
    "cancel",
    "output_format",
    "pronunciation_dictionary_locators",
)
NAMES += (
    "close_socket",
    "voice",
    "response_format",
    "split_granularity",
    "stream_audio",
    "speed",
    "ref_audio",
    "\ud800",
)
TYPES = (
    "session.config",
    "input.text",
    "input.done",
    "input.cancel",
    "session.close",
    "audio.start",
    "",
    "Speak",
    "Flush",
    "Clear",
    "Close",
)
TEXTS = (
    "Hello there. ",
    "How are you? ",
    "1,0",
    "00 cats",
    "\ud83d",
    "\ud800",
    "",
    " ",
    "[pause:",
    "```",
    "\n\n",
    "。",
    "é" * 300,
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1e308,
    2**70,
    [],
    [[]],
    {},
    {"speed": 1.5},
    {"speed": "x"},
    "a",
    "b",
)
FRAMES: tuple[str | bytes, ...] = ("", "{", "null", "[]", "7", b"", b"\x00\xff", "NaN", '{"seed": NaN}', "[" * 3000)


def message(chance: random.Random) -> str | bytes:
    """Mostly sense, so that something is said that nonsense can hit."""
    dice = chance.random()
    if dice < 0.1:
        return chance.choice(FRAMES)
    text, name = chance.choice(TEXTS), chance.choice(("a", "b", "c"))
    if dice < 0.45:
        kind = chance.choice(("input.text", "Speak"))
        found: dict[str, Any] = {"type": kind, "text": text, "transcript": text, "context_id": name}
        found["continue"] = chance.random() < 0.5
    elif dice < 0.6:
        found = {"type": "input.done", "context_id": name, "flush": True}
    elif dice < 0.7:
        found = {"type": "input.cancel", "context_id": name, "close_context": True}
    elif dice < 0.8:
        granularity = chance.choice(("none", "sentence", "clause", "token"))
        format = chance.choice(("pcm", "mp3", "wav"))
        found = {"type": "session.config", "split_granularity": granularity, "response_format": format, "text": " "}
        found["stream_audio"] = chance.random() < 0.7
    else:
        found = {"type": chance.choice(TYPES)}
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        found[chance.choice(NAMES)] = chance.choice((*VALUES, *TEXTS, *TYPES))
    return json.dumps(found)


def babble(server: RunningServer, engine: PausableEngine, messages: int, seed: int) -> Counter[str]:
    """Sends malformed messages on short-lived sockets and counts the outcomes. The engine has no streams afterwards."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    while counts["messages"] < messages:
        _babble_on(server, chance, counts, min(chance.randrange(1, 120), messages - counts["messages"]))
    eventually(lambda: engine.streams == 0 and not server.state.synthesis.active)
    return counts


def _babble_on(server: RunningServer, chance: random.Random, counts: Counter[str], messages: int) -> None:
    with connect_websocket(server, chance.choice(PATHS)) as websocket:
        counts["sockets"] += 1
        if chance.random() < 0.8:
            websocket.send(
                type="session.config", response_format="pcm", split_granularity="sentence", text=" ", stream_audio=True
            )
        for _ in range(messages):
            counts["messages"] += 1
            try:
                websocket.connection.send(message(chance))
                _listen(websocket, counts, chance.choice((0, 0, 0, 0.02)))
            except ConnectionClosed:
                break
        if chance.random() < 0.3:
            with suppress(OSError):  # it may be closed already
                websocket.connection.socket.shutdown(2)  # without a word
    code = websocket.connection.close_code
    counts[f"closed {code}"] += 1


def _listen(websocket: WebSocketClient, counts: Counter[str], seconds: float) -> None:
    """Takes what is there, or comes while one listens."""
    try:
        while True:
            found = websocket.connection.recv(timeout=seconds)
            kind = "sound" if isinstance(found, bytes) or '"audio": "' in found else "body"
            counts["errors" if kind == "body" and '"message"' in found else kind] += 1
    except TimeoutError:
        pass
