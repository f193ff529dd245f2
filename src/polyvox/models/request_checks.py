# SPDX-License-Identifier: Apache-2.0
"""Checks of a request that all model families share."""

from dataclasses import fields

from polyvox.errors import InvalidRequest
from polyvox.models.request import MAX_CHUNK_FRAMES, SEED_LIMIT, Request, Sampling

MAX_SEGMENT = 2**31 - 1
# Characters; about the text of the longest utterance that a checkpoint allows, 8,191 frames or 11 minutes.
MAX_TEXT = 10_000
SPLIT_HINT = "Split the text at sentences."


def check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(field, value, "must be a string")
    if len(value) > MAX_TEXT:
        requirement = f"must have at most {MAX_TEXT:,} characters but has {len(value):,}"
        raise InvalidRequest(field, value, requirement, SPLIT_HINT)


def check_options(request: Request, max_positions: int) -> None:
    """Raises InvalidRequest for a number out of bounds or a switch that is no bool. max_positions: of the model."""
    for field in fields(request):
        if field.type is bool and not isinstance(value := getattr(request, field.name), bool):
            raise InvalidRequest(field.name, value, "must be True or False")
    if request.max_frames is not None:
        _check_integer("max_frames", request.max_frames, 1, max_positions)
    if request.seed is not None:
        _check_integer("seed", request.seed, 0, SEED_LIMIT - 1)
    _check_integer("segment", request.segment, 0, MAX_SEGMENT)
    if request.first_chunk is not None:
        _check_integer("first_chunk", request.first_chunk, 1, MAX_CHUNK_FRAMES)
    if request.sampling is not None:
        if not isinstance(request.sampling, Sampling):
            raise InvalidRequest("sampling", request.sampling, "must be a Sampling")
        request.sampling.check()


def _check_integer(field: str, value: object, min_value: int, max_value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not min_value <= value <= max_value:
        raise InvalidRequest(field, value, f"must be an integer between {min_value} and {max_value}")
