# SPDX-License-Identifier: Apache-2.0
"""Run the reference package (qwen-tts 0.1.1) on the cases: python oracle.py CHECKPOINTS OUT.

Needs the environment that golden.py builds; imports nothing of Polyvox. Each case becomes one .npz file.

float32 is the unchanged package. In float64 its float32 parts (RMSNorm, rotary angles, the distances to codebook
entries, the mel spectrogram) are widened, as they would hide errors below 1e-7; its logits processors keep float32.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from qwen_tts import Qwen3TTSModel
from qwen_tts.core.models import modeling_qwen3_tts as talker_code
from qwen_tts.core.tokenizer_12hz import modeling_qwen3_tts_tokenizer_v2 as codec_code

from cases import (
    CASES,
    CLONES,
    CODED_RECORDINGS,
    EMBEDDED,
    FRAMES,
    LATENTS_OF,
    LONG_CODEC_FRAMES,
    MEL_OF,
    RECORDINGS,
    STREAMED_CODEC_FRAMES,
    TOKENIZER_TEXTS,
    Case,
    Clone,
    Utterance,
)
from signals import RATE, signal

Arrays = dict[str, np.ndarray]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
LOGIT_FRAMES = 8  # frames whose predictor logits are stored
MIN_FRAMES, MIN_VALUES = 24, 8  # a case with fewer frames, or fewer values of code 0, tests too little

too_few: list[str] = []


class _WideTorch:
    """The torch module with float64 under the name float32."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name == "float32" else getattr(torch, name)


@contextmanager
def widened(dtype: torch.dtype) -> Iterator[None]:
    if dtype != torch.float64:
        yield
        return
    to_float = torch.Tensor.float
    talker_code.torch = codec_code.torch = _WideTorch()
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)  # of the mel spectrogram's window
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        talker_code.torch = codec_code.torch = torch
        torch.Tensor.float = to_float


def load(folder: Path, dtype: torch.dtype) -> Any:
    reference = Qwen3TTSModel.from_pretrained(str(folder), dtype=dtype)
    codec = reference.model.speech_tokenizer.model
    if dtype == torch.float64:
        for module in [*reference.model.modules(), *codec.modules()]:
            if hasattr(module, "inv_freq"):
                dim = getattr(module.config, "head_dim", None) or module.inv_freq.numel() * 2
                exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
                module.inv_freq = 1.0 / module.config.rope_theta**exponents
        embed = reference.model.extract_speaker_embedding
        reference.model.extract_speaker_embedding = lambda audio, sr: embed(audio.astype(np.float64), sr)
    return reference


def cloned_voice(case: Case, model: Any) -> tuple[Any, Arrays]:
    """The voices of a Base case: random vectors and codes, stored in the golden file as inputs."""
    if case.utterances[0].vector is None:
        return None, {}
    talker = model.config.talker_config
    prompt: dict[str, list[Any]] = {
        "ref_code": [],
        "ref_spk_embedding": [],
        "x_vector_only_mode": [],
        "icl_mode": [],
    }
    kept: Arrays = {}
    for i, utterance in enumerate(case.utterances):
        rng = np.random.default_rng(utterance.vector)
        kept[f"vector{i}"] = rng.standard_normal(talker.hidden_size).astype(np.float32)
        prompt["ref_spk_embedding"].append(torch.from_numpy(kept[f"vector{i}"]).to(model.dtype))
        codes = None
        if utterance.reference is not None:
            shape = (utterance.reference[1], talker.num_code_groups)
            kept[f"reference{i}"] = rng.integers(0, talker.code_predictor_config.vocab_size, shape)
            codes = torch.from_numpy(kept[f"reference{i}"])
        prompt["ref_code"].append(codes)
        prompt["x_vector_only_mode"].append(codes is None)
        prompt["icl_mode"].append(codes is not None)
    return prompt, kept


def ids(reference: Any, text: str | None) -> Any:
    return None if text is None else reference._tokenize_texts([text])[0]


def generate(reference: Any, case: Case, max_new_tokens: int) -> Arrays:
    """Codes, prompt rows, trailing rows, logits and samples of one case."""
    model, talker = reference.model, reference.model.talker
    prompt, kept = cloned_voice(case, model)
    spoken: tuple[Utterance, ...] = case.utterances
    defaults = {key: value for key, value in model.generate_config.items() if key != "max_new_tokens"}
    settings = defaults | dict(case.sampling)
    if case.seed is None:
        settings |= {"do_sample": False, "subtalker_dosample": False}
    captured: dict[str, Any] = {}
    first_logits: list[Any] = []
    rest_logits: list[Any] = []
    inner = talker.generate

    def capture(**kwargs: Any) -> Any:
        captured.update(kwargs)
        return inner(**kwargs)

    hooks = [talker.codec_head.register_forward_hook(lambda _m, _i, out: first_logits.append(out[:, -1]))]
    hooks += [
        head.register_forward_hook(lambda _m, _i, out: rest_logits.append(out[:, -1]))
        for head in talker.code_predictor.lm_head
    ]
    talker.generate = capture
    try:
        if case.seed is not None:
            torch.manual_seed(case.seed)
        codes, _ = model.generate(
            input_ids=[ids(reference, reference._build_assistant_text(u.text)) for u in spoken],
            instruct_ids=[
                ids(reference, u.instructions and reference._build_instruct_text(u.instructions)) for u in spoken
            ],
            ref_ids=[ids(reference, u.reference and reference._build_ref_text(u.reference[0])) for u in spoken],
            voice_clone_prompt=prompt,
            languages=[u.language for u in spoken],
            speakers=[u.speaker for u in spoken],
            non_streaming_mode=case.layout == "whole",
            max_new_tokens=max_new_tokens,
            **settings,
        )
    finally:
        talker.generate = inner
        for hook in hooks:
            hook.remove()

    result = dict(kept)
    for i, utterance in enumerate(spoken):
        result[f"chat{i}"] = ids(reference, reference._build_assistant_text(utterance.text))[0].numpy()
        if utterance.instructions:
            instructed = reference._build_instruct_text(utterance.instructions)
            result[f"instructions{i}"] = ids(reference, instructed)[0].numpy()
        if utterance.reference:
            result[f"transcript{i}"] = ids(reference, reference._build_ref_text(utterance.reference[0]))[0].numpy()
    mask = captured["attention_mask"].bool()
    config = model.config.talker_config
    groups = config.num_code_groups
    legal = [*range(config.vocab_size - 1024), config.codec_eos_token_id]
    for i, own in enumerate(codes):
        result[f"codes{i}"] = own.numpy()
        result[f"prefill{i}"] = captured["inputs_embeds"][i][mask[i]].numpy()
        result[f"trailing{i}"] = captured["trailing_text_hidden"][i].numpy()
        result[f"audio{i}"] = audio(model, own, kept.get(f"reference{i}"))
        frames = len(own)
        result[f"logits{i}"] = torch.stack(first_logits[:frames])[:, i, legal].numpy()
        few = min(frames, LOGIT_FRAMES) * (groups - 1)
        result[f"rest_logits{i}"] = torch.stack(rest_logits[:few])[:, i].unflatten(0, (-1, groups - 1)).numpy()
    return result


def audio(model: Any, codes: Any, reference: Any) -> Any:
    """The samples of a stream; after a reference recording, only the new ones."""
    before = torch.from_numpy(reference) if reference is not None else codes[:0]
    frames = torch.cat([before, codes])
    codec = model.speech_tokenizer.model
    samples = codec.decoder(frames.T[None])[0, 0]
    return samples[len(before) * codec.decode_upsample_rate :].numpy()


def codec_arrays(model: Any) -> Arrays:
    """One-shot decodes: a short one, and a long one beside the package's own chunked form of it."""
    codec = model.speech_tokenizer.model
    config = codec.config.decoder_config
    rng = np.random.default_rng(5)
    short = rng.integers(0, config.codebook_size, (2, STREAMED_CODEC_FRAMES, config.num_quantizers))
    long = rng.integers(0, config.codebook_size, (1, LONG_CODEC_FRAMES, config.num_quantizers))
    return {
        "short_codes": short,
        "short": codec.decoder(torch.from_numpy(short).transpose(1, 2))[:, 0].numpy(),
        "long_codes": long,
        "long": codec.decoder(torch.from_numpy(long).transpose(1, 2))[:, 0].numpy(),
        "long_chunked": codec.decode(torch.from_numpy(long)).audio_values[0][None].numpy(),
    }


def encoder_arrays(reference: Any) -> Arrays:
    """The results of the two encoders for the recordings, and some intermediate values."""
    model = reference.model
    result: Arrays = {}
    for kind, count in (*RECORDINGS, *CODED_RECORDINGS):
        samples = signal(kind, count)
        encoded = model.speech_tokenizer.encode(samples, sr=RATE)
        result[f"codes.{kind}.{count}"] = encoded.audio_codes[0].numpy()
        if (kind, count) in RECORDINGS:
            result[f"vector.{kind}.{count}"] = model.extract_speaker_embedding(samples, RATE).numpy()
    kept: list[Any] = []
    codec = model.speech_tokenizer.model.encoder
    hooks = [codec.downsample.register_forward_hook(lambda _m, _i, out: kept.append(out[0].numpy()))]
    hooks.append(model.speaker_encoder.register_forward_pre_hook(lambda _m, given: kept.append(given[0][0].T.numpy())))
    model.speech_tokenizer.encode(signal(*LATENTS_OF), sr=RATE)
    model.extract_speaker_embedding(signal(*MEL_OF), RATE)
    for hook in hooks:
        hook.remove()
    result["latents"], result["mel"] = kept
    bank = talker_code.librosa_mel_fn(sr=RATE, n_fft=1024, n_mels=128, fmin=0, fmax=12000)
    return result | {"bank": bank}


def cloned(reference: Any, case: Clone) -> Arrays:
    """Speech by the package's own call, from the samples of a recording: codes, prompt parts and samples."""
    model = reference.model
    captured: dict[str, Any] = {}
    inner = model.generate

    def capture(**kwargs: Any) -> Any:
        captured["prompt"] = kwargs["voice_clone_prompt"]
        captured["codes"], rest = inner(**kwargs)
        return captured["codes"], rest

    model.generate = capture
    try:
        samples, _ = reference.generate_voice_clone(
            text=case.text,
            language=case.language,
            ref_audio=(signal(*case.recording), RATE),
            ref_text=case.transcript,
            x_vector_only_mode=case.transcript is None,
            non_streaming_mode=False,
            do_sample=False,
            subtalker_dosample=False,
            max_new_tokens=FRAMES + 1,
        )
    finally:
        model.generate = inner
    result = {
        "codes0": captured["codes"][0].numpy(),
        "vector0": captured["prompt"]["ref_spk_embedding"][0].numpy(),
        "audio0": samples[0],
    }
    if case.transcript is not None:
        result["reference0"] = captured["prompt"]["ref_code"][0].numpy()
    return result


def check(case: Case | Clone, result: Arrays) -> None:
    """Report cases with too little variety: many wrong models would pass them."""
    for i in range(len(case.utterances) if isinstance(case, Case) else 1):
        frames, values = len(result[f"codes{i}"]), len(np.unique(result[f"codes{i}"][:, 0]))
        if frames < MIN_FRAMES or values < MIN_VALUES:
            print(f"TOO FEW in {case.name} {i}: {frames} frames, {values} values of code 0", flush=True)
            too_few.append(case.name)


def main(checkpoints: Path, out: Path) -> None:
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    tokens: Arrays = {}
    for checkpoint in sorted({case.checkpoint for case in (*CASES, *EMBEDDED)}):
        merged: dict[str, Arrays] = {}
        for suffix, dtype in DTYPES.items():
            with widened(dtype), torch.no_grad():
                reference = load(checkpoints / checkpoint, dtype)
                found = {}
                for case in (*CASES, *EMBEDDED):
                    if case.checkpoint == checkpoint:
                        # N new tokens are N - 1 frames; the embedded voice reaches its end of speech.
                        found[case.name] = generate(reference, case, 200 if case in EMBEDDED else FRAMES + 1)
                        check(case, found[case.name])
                        print(f"{suffix} {case.name}", flush=True)
                if checkpoint == "custom_voice":
                    found["codec"] = codec_arrays(reference.model)
                if checkpoint == "base":
                    found["encoders"] = encoder_arrays(reference)
                    for clone in CLONES:
                        found[f"clone-{clone.name}"] = cloned(reference, clone)
                        check(clone, found[f"clone-{clone.name}"])
            for name, arrays in found.items():
                if checkpoint == "embedded":
                    # Trained weights at 1,920 samples a frame: the samples are large, and stored once.
                    keep = ("codes", "audio") if suffix == "float32" else ("codes",)
                    arrays = {key: value for key, value in arrays.items() if key.startswith(keep)}
                merged.setdefault(name, {}).update({f"{suffix}.{key}": value for key, value in arrays.items()})
        for name, arrays in merged.items():
            np.savez_compressed(out / f"{name}.npz", **arrays)
        for i, text in enumerate(TOKENIZER_TEXTS):
            tokens[f"{checkpoint}.{i}"] = ids(reference, text)[0].numpy()
    np.savez_compressed(out / "tokenizer.npz", **tokens)
    if too_few:
        sys.exit(f"change the text or the seed of: {', '.join(too_few)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
