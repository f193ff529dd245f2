"""One checkpoint as a program of three calls: prefill, frame, decode_audio."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyvox.models.qwen3_tts.codec import CodecDecoder, CodecState
from polyvox.models.qwen3_tts.config import CONTROL_IDS, MIN_FRAMES, ModelConfig, Sampling
from polyvox.models.qwen3_tts.prompt import Prompt
from polyvox.models.qwen3_tts.sampling import Noise, SamplingRows, draw, penalised, sampling_rows
from polyvox.models.qwen3_tts.talker import KVCache, Talker


@dataclass(slots=True)
class Streams:
    """A batch of streams between two frame steps, one row each; all of it lives on the device."""

    cache: KVCache
    span: int  # the host's bound on the longest row of the cache, in positions
    input: Tensor  # [B, hidden]: what the talker reads next
    position: Tensor  # [B]: where that row goes in the cache
    text: Tensor  # [B, rows, hidden]: text still to be read, one row a frame, the last row the pad
    frame: Tensor  # [B]: frames done
    seen: Tensor  # [B, vocab]: code 0 so far, for the repetition penalty
    ended: Tensor  # [B]: end of speech was drawn; the codes of this and any later step mean nothing
    talker_sampling: SamplingRows
    predictor_sampling: SamplingRows
    noise: Noise


class Qwen3TTS(nn.Module):
    """Talker, predictor and codec decoder; the attributes are the prefixes of the checkpoint's tensors."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config)
        self.codec = CodecDecoder(config.codec)

    @property
    def device(self) -> torch.device:
        return self.talker.codec_head.weight.device

    def embed(self, prompt: Prompt, vector: Tensor | None = None, frames: Tensor | None = None) -> Tensor:
        """A prompt as prefill rows [T, hidden]; vector and frames are the parts of a cloned voice."""
        codec = torch.tensor(prompt.codec, device=self.device)[:, None]
        rows = self.talker.text_rows(torch.tensor(prompt.text, device=self.device))
        rows = rows + torch.where(codec >= 0, self.talker.model.codec_embedding(codec.clamp(min=0))[:, 0], 0)
        if prompt.vector_row is not None:
            assert vector is not None
            rows[prompt.vector_row] += vector.to(rows)
        if prompt.frames_row is not None:
            assert frames is not None
            rows[prompt.frames_row : prompt.frames_row + len(frames)] += self.talker.frame_rows(
                frames.to(self.device)
            )
        return rows

    def prefill(
        self,
        rows: Sequence[Tensor],
        trailing: Sequence[Sequence[int]],
        sampling: Sequence[Sampling],
        noise: Noise,
    ) -> Streams:
        """Reads the prompts [T, hidden] of a batch of streams, all rows but the last, which the first frame reads.

        trailing are the text ids of each stream's frames.
        """
        lengths = torch.tensor([len(prompt) - 1 for prompt in rows], device=self.device)
        span = max(len(prompt) for prompt in rows)
        cache = KVCache(self.config.talker.transformer, len(rows), 2 * span, like=rows[0])
        padded = nn.utils.rnn.pad_sequence([prompt[:-1] for prompt in rows], batch_first=True)
        positions = torch.arange(span - 1, device=self.device).expand(len(rows), -1)
        self.talker(padded, positions, cache.at(positions, span - 1))
        pad = self.config.tts_pad_id
        longest = max(len(ids) for ids in trailing) + 1
        text = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids in trailing], device=self.device)
        talker_sampling, predictor_sampling = sampling_rows(sampling, self.device)
        return Streams(
            cache=cache,
            span=span,
            input=torch.stack([prompt[-1] for prompt in rows]),
            position=lengths,
            text=self.talker.text_rows(text),
            frame=torch.zeros_like(lengths),
            seen=torch.zeros(len(rows), self.config.talker.vocab_size, dtype=torch.bool, device=self.device),
            ended=torch.zeros(len(rows), dtype=torch.bool, device=self.device),
            talker_sampling=talker_sampling,
            predictor_sampling=predictor_sampling,
            noise=noise,
        )

    def frame(self, streams: Streams) -> Tensor:
        """One frame of every stream: codes [B, groups]. Rows whose `ended` is set by it have no frame."""
        s, talker = streams, self.talker
        attend = s.cache.at(s.position[:, None], s.span)
        hidden = talker(s.input[:, None], s.position[:, None], attend)[:, 0]
        code = self._draw_first(talker.codec_head(hidden), s)
        s.ended = s.ended | (code == self.config.talker.eos_id)

        vocab, residuals = self.config.predictor.vocab_size, talker.code_predictor.residuals
        noise = s.noise(s.frame, 1, residuals, vocab)
        rest = talker.code_predictor(
            hidden,
            talker.model.codec_embedding(code),
            lambda book, logits: draw(logits, s.predictor_sampling, noise[:, book]),
        )
        codes = torch.cat([code[:, None], rest], dim=1)
        row = s.frame.clamp(max=s.text.shape[1] - 1)[:, None, None].expand(-1, 1, s.text.shape[2])
        s.input = talker.frame_rows(codes) + s.text.gather(1, row)[:, 0]
        s.seen = s.seen.scatter(1, code[:, None], True)
        s.position, s.frame, s.span = s.position + 1, s.frame + 1, s.span + 1
        return codes

    def decode_audio(self, codes: Tensor, state: CodecState) -> tuple[Tensor, CodecState]:
        """The next frames of each stream [B,T,groups] to samples [B, T · samples_per_frame]; see codec.py."""
        return self.codec(codes, state)

    def _draw_first(self, logits: Tensor, s: Streams) -> Tensor:
        """Code 0 or end of speech, by the reference's order of processors."""
        config = self.config.talker
        token = torch.arange(config.vocab_size, device=logits.device)
        forbidden = (token >= config.vocab_size - CONTROL_IDS) & (token != config.eos_id)
        too_early = (s.frame < MIN_FRAMES)[:, None] & (token == config.eos_id)
        logits = penalised(logits, s.seen, s.talker_sampling.repetition_penalty)
        logits = logits.masked_fill(forbidden | too_early, -torch.inf)
        return draw(logits, s.talker_sampling, s.noise(s.frame, 0, 1, config.vocab_size)[:, 0])
