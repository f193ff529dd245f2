# SPDX-License-Identifier: Apache-2.0
"""Run a reference case through Polyvox's model calls and record the arrays that the golden files contain."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from conftest import LoadedTTS
from polyvox.engine.config import PAGE
from polyvox.engine.kv_cache import KVCache
from polyvox.kernels.flags import FRAME_ENDED
from polyvox.kernels.noise import keyed_noise
from polyvox.models.layers.sampling import Noise
from polyvox.models.layers.talker import BaseTalker
from polyvox.models.layers.talker_config import CONTROL_IDS
from polyvox.models.layers.transformer import Transformer
from polyvox.models.protocol import PrefillMetadata, PreparedRequest, PromptRows
from polyvox.models.qwen3_tts.prompt import Reference, build_prompt
from polyvox.models.request import Layout, Sampling
from polyvox.models.talker_generator import NEVER, SamplingPayload, TalkerGenerator
from polyvox.models.talker_prompt import Prompt
from reference.cases import EMBEDDED, FRAMES, Case, Utterance

Array = NDArray[Any]
Golden = dict[str, Array]

GOLDEN = Path(__file__).parent / "golden"
# Relative to the largest value of an array.
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


def golden(name: str, dtype: str) -> Golden:
    """The arrays of the reference in one dtype."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key.removeprefix(f"{dtype}."): file[key] for key in file.files if key.startswith(dtype)}


class GeneratorNoise:
    """The noise of the reference implementation, in its order, from one torch generator and for one stream.

    torch.multinomial is a race of exponentials: argmax(p / e), which is argmax(log p - log e).
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(
        self,
        key: torch.Tensor,  # noqa: ARG002
        segment: torch.Tensor,  # noqa: ARG002
        frame: torch.Tensor,
        first: int,  # noqa: ARG002
        count: int,
        vocab: int,
    ) -> torch.Tensor:
        assert len(frame) == 1
        draws = [torch.empty(1, vocab).exponential_(generator=self._generator) for _ in range(count)]
        return -torch.stack(draws, dim=1).log().to(frame.device)


def relative_error(ours: Array | torch.Tensor, theirs: Array) -> float:
    ours = ours.cpu().numpy() if isinstance(ours, torch.Tensor) else ours
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@dataclass
class Run:
    """The results of Polyvox for a case, one list entry per utterance."""

    codes: list[Array] = field(default_factory=list)
    prefill: list[torch.Tensor] = field(default_factory=list)
    trailing: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    rest_logits: list[torch.Tensor] = field(default_factory=list)
    audio: list[torch.Tensor] = field(default_factory=list)


def prompt_of(tts: LoadedTTS, case: Case, utterance: Utterance) -> Prompt:
    tokenizer = tts.model.tokenizer
    reference = None
    if utterance.reference is not None:
        reference = Reference(tokenizer.text(utterance.reference[0]), utterance.reference[1])
    return build_prompt(
        tts.model.config,
        tokenizer.role,
        tokenizer._encode(utterance.text),  # of a model whose text is phonemes: a phoneme string, as for the reference
        cast(Layout, case.layout),
        utterance.language,
        utterance.speaker,
        utterance.vector is not None,
        reference,
        tokenizer.instructions(utterance.instructions) if utterance.instructions else (),
    )


def sampling_of(tts: LoadedTTS, case: Case) -> Sampling:
    if case.seed is None:
        return replace(tts.model.config.sampling, temperature=0.0, predictor_temperature=0.0)
    changes = {key.replace("subtalker_", "predictor_"): value for key, value in case.sampling.items()}
    return replace(tts.model.config.sampling, **changes)


def run(tts: LoadedTTS, case: Case, inputs: Golden, change: Callable[[Prompt], Prompt] = lambda prompt: prompt) -> Run:
    """Run a case as one batch; `change` may modify its prompts, to test that the comparison fails."""
    generator, codec, count = tts.model.generator, tts.model.model.codec, len(case.utterances)
    result = Run()
    prompts = [change(prompt_of(tts, case, utterance)) for utterance in case.utterances]
    rows: list[PromptRows] = []
    for i, prompt in enumerate(prompts):
        vector, reference = (inputs.get(f"{name}{i}") for name in ("vector", "reference"))
        parts = [None if part is None else torch.from_numpy(part) for part in (vector, reference)]
        rows.append(prompt_rows(generator, prompt, *parts))
        result.prefill.append(embed(generator, rows[-1]))
        result.trailing.append(generator.text_table.rows[generator.text_ids(prompt.trailing)])
    noise = keyed_noise if case.seed is None else GeneratorNoise(torch.Generator().manual_seed(case.seed))

    first: list[torch.Tensor] = []
    rest: list[torch.Tensor] = []

    def recording(to: list[torch.Tensor], logits: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def recorded(*inputs: Any) -> torch.Tensor:
            to.append(logits(*inputs))
            return to[-1]

        return recorded

    with (
        mock.patch.object(BaseTalker, "logits", recording(first, BaseTalker.logits)),
        mock.patch.object(Transformer, "logits", recording(rest, Transformer.logits)),
    ):
        frames, ended = [], []
        trailing = [prompt.trailing for prompt in prompts]
        batch = Batch(generator, rows, trailing, [sampling_of(tts, case)] * count)
        for _ in range(199 if case in EMBEDDED else FRAMES):
            codes, over = batch.frame(noise)
            frames.append(codes)
            ended.append(over)
            if over.all():
                break

    legal = [*range(tts.model.config.talker.vocab_size - CONTROL_IDS), tts.model.config.talker.eos_id]
    for i in range(count):
        length = sum(not bool(rows[i]) for rows in ended)
        codes = torch.stack(frames)[:length, i]
        result.codes.append(codes.cpu().numpy())
        result.logits.append(torch.stack(first)[:length, i, legal])
        result.rest_logits.append(torch.stack(rest)[:, i].unflatten(0, (len(frames), -1))[:length])
        if int(codes.max()) >= tts.model.config.codec.codebook_size:
            continue  # only a modified model generates such codes
        before = torch.from_numpy(inputs[f"reference{i}"]).to(codes) if f"reference{i}" in inputs else codes[:0]
        samples, _ = codec(torch.cat([before, codes])[None], codec.initial_state(1))
        result.audio.append(samples[0, len(before) * tts.model.config.codec.samples_per_frame :])
    return result


def prompt_rows(
    generator: TalkerGenerator, prompt: Prompt, vector: torch.Tensor | None = None, frames: torch.Tensor | None = None
) -> PromptRows:
    """The rows of a prompt; vector and frames are the parts of a cloned voice."""
    rows = generator.prompt_rows(prompt)
    if vector is None:
        return rows
    parts = [vector[None].to(generator.device, generator.dtype)]
    parts += [] if frames is None else [generator.talker.frame_rows(frames.to(generator.device))]
    given = torch.cat(parts)
    return replace(rows, given=given, given_at=prompt.voice_rows(len(given) - 1))


def given_rows(generator: TalkerGenerator, rows: PromptRows) -> torch.Tensor:
    """The given part of each row, [T, hidden]."""
    found = torch.zeros(len(rows), generator.hidden_size, dtype=generator.dtype, device=generator.device)
    if rows.given is not None:
        found[rows.given_at] = rows.given
    return found


def embed(generator: TalkerGenerator, rows: PromptRows) -> torch.Tensor:
    return generator.embed(generator.to_device(rows.ids), given_rows(generator, rows))


class Batch:
    """A batch of streams without an engine: slot i is request i."""

    def __init__(
        self,
        generator: TalkerGenerator,
        prompts: Sequence[PromptRows],
        texts: Sequence[Sequence[int]],
        sampling: Sequence[Sampling],
        seeds: Sequence[int] | None = None,
        frames: int = 200,
        offsets: Sequence[torch.Tensor | None] | None = None,
    ) -> None:
        count = len(prompts)
        self.max_context = max(len(prompt) for prompt in prompts)
        pages = -(-(self.max_context + frames) // PAGE)
        self.state = generator.new_state(count, max(map(len, texts)), ring_frames=8)
        self.cache = KVCache(generator.kv_shape, count * pages, count, pages, generator.device, generator.kv_dtype)
        self.slots = torch.arange(count, device=generator.device)
        for i, (prompt, text, params) in enumerate(zip(prompts, texts, sampling, strict=True)):
            payload = SamplingPayload(seeds[i] if seeds else 0, 0, params, NEVER, offsets[i] if offsets else None)
            # Pages of different streams are interleaved, as in the engine.
            self.cache.set_block_table(i, list(range(i + 1, count * pages + 1, count)))
            self.state.assign(i, PreparedRequest(prompt, text, frames, False, len(text), payload))
        self.cache.upload()
        self.state.upload()
        ids = torch.from_numpy(np.concatenate([prompt.ids[:, :-1] for prompt in prompts], axis=1)).to(generator.device)
        given = torch.cat([given_rows(generator, prompt)[:-1] for prompt in prompts])
        counts = torch.tensor([len(prompt) - 1 for prompt in prompts], device=generator.device)
        owner = self.slots.repeat_interleave(counts)
        column = torch.cat([torch.arange(len(prompt) - 1, device=generator.device) for prompt in prompts])
        metadata = PrefillMetadata(self.slots, owner, column, self.max_context - 1)
        self.state.prefill(ids, given, owner, column, self.cache, self.max_context - 1, metadata)
        self.ended = torch.zeros(count, dtype=torch.bool, device=generator.device)

    def frame(self, noise: Noise = keyed_noise) -> tuple[torch.Tensor, torch.Tensor]:
        """The next frame's codes [B, codebooks], and which streams have ended."""
        ring_index = self.state.frame_index % self.state.codes.shape[1]
        flags = self.state.frame(self.slots, self.cache, self.max_context, noise)
        self.max_context += 1
        self.ended |= (flags & FRAME_ENDED).bool()
        return self.state.codes[self.slots, ring_index].clone(), self.ended.clone()


def same_codes(ours: Run, theirs: Golden) -> bool:
    return all(np.array_equal(codes, theirs[f"codes{i}"]) for i, codes in enumerate(ours.codes))
