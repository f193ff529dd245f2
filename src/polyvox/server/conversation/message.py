# SPDX-License-Identifier: Apache-2.0
"""Joins the deltas of a streamed chat completion to one message."""

from collections.abc import Mapping
from typing import Any

from polyvox.thinkers.interface import Delta


class MessageBuilder:
    """Texts are joined, tool calls by their index; fields that are unknown here keep their last value."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._tool_calls: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[str, list[Any]] = {}
        self.chunk: Mapping[str, Any] = {}  # the first one: id, model and so on
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, delta: Delta) -> None:
        self.chunk = self.chunk or delta.chunk
        self._texts.append(delta.text)
        for choice in delta.chunk["choices"]:
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for call in value or []:
                        self._add_tool_call(call)
                elif name not in ("role", "content"):
                    _join(self._message, name, value)
            for name, values in (choice.get("logprobs") or {}).items():
                self._logprobs.setdefault(name, []).extend(values or [])

    def message(self) -> dict[str, Any]:
        calls = {"tool_calls": list(self._tool_calls.values())} if self._tool_calls else {}
        return {**self._message, "content": self.text or None, **calls}

    def logprobs(self) -> dict[str, list[Any]] | None:
        return self._logprobs or None

    def _add_tool_call(self, call: dict[str, Any]) -> None:
        known = self._tool_calls.setdefault(call.get("index", len(self._tool_calls)), {})
        for name, value in call.items():
            if name == "function" and isinstance(value, Mapping):
                function = known.setdefault("function", {"name": "", "arguments": ""})
                for part in ("name", "arguments"):
                    function[part] += value.get(part) or ""
            elif name != "index" and value is not None:
                known[name] = value


def _join(message: dict[str, Any], name: str, value: Any) -> None:
    known = message.get(name)
    if isinstance(known, str) and isinstance(value, str):
        message[name] = known + value
    elif value is not None:
        message[name] = value
