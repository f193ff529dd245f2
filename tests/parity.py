"""Runs a case of the reference through Polyvox's three calls and keeps what the golden files keep."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from polyvox.models.qwen3_tts import model as model_code
from polyvox.models.qwen3_tts import sampling as sampling_code
from polyvox.models.qwen3_tts.config import CONTROL_IDS, Sampling
from polyvox.models.qwen3_tts.prompt import Layout, Prompt, Reference, build_prompt
from polyvox.models.qwen3_tts.sampling import GeneratorNoise, KeyedNoise, SamplingRows
from polyvox.tts import TTS
from reference.cases import EMBEDDED, FRAMES, Case, Utterance

Array = NDArray[Any]
Golden = dict[str, Array]

GOLDEN = Path(__file__).parent / "golden"
# Relative to the largest value of an array.
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


def golden(name: str, dtype: str) -> Golden:
    """The arrays that the reference gave in one number type."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key.removeprefix(f"{dtype}."): file[key] for key in file.files if key.startswith(dtype)}


def relative_error(ours: Array | torch.Tensor, theirs: Array) -> float:
    ours = ours.cpu().numpy() if isinstance(ours, torch.Tensor) else ours
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@dataclass
class Run:
    """What Polyvox gives for a case, a list entry for each utterance."""

    codes: list[Array] = field(default_factory=list)
    prefill: list[torch.Tensor] = field(default_factory=list)
    trailing: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    rest_logits: list[torch.Tensor] = field(default_factory=list)
    audio: list[torch.Tensor] = field(default_factory=list)


def prompt_of(tts: TTS, case: Case, utterance: Utterance) -> Prompt:
    tokenizer = tts.tokenizer
    reference = None
    if utterance.reference is not None:
        reference = Reference(tokenizer.text(utterance.reference[0]), utterance.reference[1])
    return build_prompt(
        tts.config,
        tokenizer.role,
        tokenizer.text(utterance.text),
        cast(Layout, case.layout),
        utterance.language,
        utterance.speaker,
        utterance.vector is not None,
        reference,
        tokenizer.instructions(utterance.instructions) if utterance.instructions else (),
    )


def sampling_of(tts: TTS, case: Case) -> Sampling:
    if case.seed is None:
        return replace(tts.config.sampling, temperature=0.0, predictor_temperature=0.0)
    changes = {key.replace("subtalker_", "predictor_"): value for key, value in case.sampling.items()}
    return replace(tts.config.sampling, **changes)


def run(tts: TTS, case: Case, inputs: Golden, change: Callable[[Prompt], Prompt] = lambda prompt: prompt) -> Run:
    """Speaks a case as one batch; `change` may spoil its prompts."""
    model, count = tts.model, len(case.utterances)
    result = Run()
    prompts = [change(prompt_of(tts, case, utterance)) for utterance in case.utterances]
    for i, prompt in enumerate(prompts):
        vector, reference = (inputs.get(f"{name}{i}") for name in ("vector", "reference"))
        parts = [None if part is None else torch.from_numpy(part) for part in (vector, reference)]
        result.prefill.append(model.embed(prompt, *parts))
        result.trailing.append(model.talker.text_rows(torch.tensor(prompt.trailing, device=model.device)))
    if case.seed is None:
        noise: KeyedNoise | GeneratorNoise = KeyedNoise([0] * count, [0] * count, model.device)
    else:
        noise = GeneratorNoise(torch.Generator().manual_seed(case.seed))

    first: list[torch.Tensor] = []
    rest: list[torch.Tensor] = []
    draw = sampling_code.draw

    def recording_draw(logits: torch.Tensor, params: SamplingRows, noise: torch.Tensor) -> torch.Tensor:
        if logits.shape[-1] == tts.config.predictor.vocab_size:
            rest.append(logits)
        return draw(logits, params, noise)

    hook = model.talker.codec_head.register_forward_hook(lambda _m, _i, out: first.append(out))
    with mock.patch.object(model_code, "draw", recording_draw):
        streams = model.prefill(
            result.prefill, [p.trailing for p in prompts], [sampling_of(tts, case)] * count, noise
        )
        frames, ended = [], []
        for _ in range(199 if case in EMBEDDED else FRAMES):
            frames.append(model.frame(streams))
            ended.append(streams.ended)
            if streams.ended.all():
                break
    hook.remove()

    legal = [*range(tts.config.talker.vocab_size - CONTROL_IDS), tts.config.talker.eos_id]
    for i in range(count):
        length = sum(not bool(rows[i]) for rows in ended)
        codes = torch.stack(frames)[:length, i]
        result.codes.append(codes.cpu().numpy())
        result.logits.append(torch.stack(first)[:length, i, legal])
        result.rest_logits.append(torch.stack(rest)[:, i].unflatten(0, (len(frames), -1))[:length])
        if int(codes.max()) >= tts.config.codec.codebook_size:
            continue  # only a spoiled model gets here
        before = torch.from_numpy(inputs[f"reference{i}"]).to(codes) if f"reference{i}" in inputs else codes[:0]
        samples, _ = model.decode_audio(torch.cat([before, codes])[None], model.codec.initial_state(1))
        result.audio.append(samples[0, len(before) * tts.config.codec.samples_per_frame :])
    return result


def same_codes(ours: Run, theirs: Golden) -> bool:
    return all(np.array_equal(codes, theirs[f"codes{i}"]) for i, codes in enumerate(ours.codes))
