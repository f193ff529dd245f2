"""One checkpoint as a program of three calls over slots: prefill, frame, decode."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from polyvox import kernels
from polyvox.kernels.frame_end import FrameRecord, finish_frame
from polyvox.kernels.next_inputs import next_inputs
from polyvox.kernels.noise import keyed_noise
from polyvox.kernels.sampler import DrawInputs, FirstCodeRules, draw, draw_keyed, first_code_scores
from polyvox.models.protocol import Cache, PrefillMetadata
from polyvox.models.qwen3_tts.codec import CodecDecoder, CodecState
from polyvox.models.qwen3_tts.codec_encoder import CodecEncoder
from polyvox.models.qwen3_tts.config import CONTROL_IDS, ModelConfig
from polyvox.models.qwen3_tts.encoder_config import EncodersConfig
from polyvox.models.qwen3_tts.predictor import Draw
from polyvox.models.qwen3_tts.prompt import NOTHING, Prompt
from polyvox.models.qwen3_tts.sampling import Noise
from polyvox.models.qwen3_tts.speaker_encoder import SpeakerEncoder
from polyvox.models.qwen3_tts.talker import Talker
from polyvox.models.qwen3_tts.transformer import file_tensors

# Past its text's budget a stream's end of speech gains this much logit with every frame.
END_PRESSURE = 0.05


@dataclass(slots=True)
class Slots:
    """All that streams are between two steps, one row each; allocated once and changed in place."""

    input: Tensor  # [S, hidden]: what the talker reads next
    position: Tensor  # [S]: where that row goes in the cache
    text: Tensor  # [S, rows, hidden]: text still to be read, one row a frame, a ring
    text_end: Tensor  # [S]: frames for which there is text; from there on it is the pad
    frame: Tensor  # [S]: frames done
    seen: Tensor  # [S, vocab]: code 0 so far, for the repetition penalty
    least: Tensor  # [S]: frames before end of speech may be drawn
    budget: Tensor  # [S]: frames after which end of speech becomes likelier
    still: Tensor  # [S]: frames for which speech has stood still
    talker_params: Tensor  # [S, 4]
    predictor_params: Tensor  # [S, 4]
    key: Tensor  # [S, 2]
    segment: Tensor  # [S]
    codes: Tensor  # [S, ring, groups]: frames that the codec has still to read
    codec: CodecState
    pad: Tensor  # [hidden]: the text row of a frame that has no text; not a slot's own

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self._all())

    def poison(self, slot: int) -> None:
        """Spoils a free slot, so that whoever reads what was not written anew is found out."""
        for rows in self._all():
            _spoil(rows[slot])

    def _all(self) -> list[Tensor]:
        own = [getattr(self, name) for name in self.__slots__ if name not in ("codec", "pad")]
        return [*own, *self.codec.values()]


def _spoil(row: Tensor) -> None:
    row.fill_(torch.nan if row.is_floating_point() else 1)


class Encoders(nn.Module):
    """What turns a recording into a voice."""

    def __init__(self, config: EncodersConfig) -> None:
        super().__init__()
        self.codec = CodecEncoder(config.codec)
        self.speaker = SpeakerEncoder(config.speaker)


class Qwen3TTS(nn.Module):
    """Talker, predictor and codec decoder; a Base model's encoders, too."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.talker = Talker(config)
        self.codec = CodecDecoder(config.codec)
        self.encoders = Encoders(config.encoders) if config.encoders else None

    @property
    def device(self) -> torch.device:
        return self.talker.codec_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.talker.codec_head.weight.dtype

    def files(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors of each of a checkpoint's two files, by name, as views of what holds them here."""
        talker, codec = file_tensors(self.talker, "talker."), file_tensors(self.codec, "decoder.")
        if self.encoders is not None:
            talker |= file_tensors(self.encoders.speaker, "speaker_encoder.")
            codec |= file_tensors(self.encoders.codec, "encoder.")
        return talker, codec

    def embed(
        self, prompt: Prompt, text: Sequence[int] = (), vector: Tensor | None = None, frames: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """A prompt as prefill rows [T, hidden], and the rows of text that comes after it.

        vector and frames are the parts of a cloned voice. In few calls: each takes the interpreter from the engine's
        thread, and requests come by the hundred.
        """
        begin = next((at for at, id in enumerate(prompt.codec) if id != NOTHING), len(prompt))
        ids = prompt.codec[begin:]
        both = self.text_rows([*prompt.text, *text])
        rows, after = both[: len(prompt)], both[len(prompt) :]
        heard = self.talker.model.codec_embedding(self.sent([max(id, 0) for id in ids], torch.int64))
        if NOTHING in ids:
            heard = torch.where(self.sent([id != NOTHING for id in ids], torch.bool)[:, None], heard, 0)
        rows[begin:] += heard
        if prompt.vector_row is not None:
            assert vector is not None
            rows[prompt.vector_row] += vector.to(rows)
        if prompt.frames_row is not None:
            assert frames is not None
            heard = self.talker.frame_rows(frames.to(self.device))
            rows[prompt.frames_row : prompt.frames_row + len(frames)] += heard
        return rows, after

    def sent(self, values: list[int] | list[float] | list[bool], dtype: torch.dtype) -> Tensor:
        """On the device, which need not be waited for."""
        given = torch.tensor(values, dtype=dtype, pin_memory=self.device.type == "cuda")
        return given.to(self.device, non_blocking=True)

    def text_rows(self, ids: Sequence[int]) -> Tensor:
        """Text ids as rows of the talker's width."""
        return self.talker.text_rows(torch.tensor(ids, dtype=torch.int64))

    def new_slots(self, count: int, text_rows: int, ring: int) -> Slots:
        """Memory for so many streams; a slot's rows mean nothing before they are written."""
        talker, device = self.config.talker, self.device
        hidden = talker.transformer.hidden_size
        if device.type == "cuda":
            self.talker.settle()

        def whole(*shape: int) -> Tensor:
            return torch.zeros(count, *shape, dtype=torch.int64, device=device)

        return Slots(
            input=torch.zeros(count, hidden, dtype=self.dtype, device=device),
            position=whole(),
            text=torch.zeros(count, text_rows, hidden, dtype=self.dtype, device=device),
            text_end=whole(),
            frame=whole(),
            seen=torch.zeros(count, talker.vocab_size, dtype=torch.bool, device=device),
            least=whole(),
            budget=whole(),
            still=whole(),
            talker_params=torch.ones(count, 4, device=device),
            predictor_params=torch.ones(count, 4, device=device),
            key=whole(2),
            segment=whole(),
            codes=whole(ring, talker.code_groups),
            codec=self.codec.initial_state(count),
            pad=self.text_rows([self.config.tts_pad_id])[0],
        )

    def prefill(
        self, rows: Tensor, slots: Tensor, positions: Tensor, cache: Cache, span: int, pack: PrefillMetadata | None
    ) -> None:
        """Reads prompt rows [N,hidden] into the cache, each at its position [N] of its slot [N]."""
        self.talker(rows[None], positions[None], cache.at(slots, positions, span, pack))

    def frame(self, s: Slots, slots: Tensor, cache: Cache, span: int, noise: Noise = keyed_noise) -> Tensor:
        """One frame of each of these slots [B]; what it tells of them, [B].

        A slot that has ENDED got no frame from it, and a further frame writes nothing that anyone reads.
        """
        talker, config = self.talker, self.config
        position = s.position[slots]
        hidden = talker(s.input[slots][:, None], position[:, None], cache.at(slots, position, span, decode_only=True))[
            :, 0
        ]
        draw_code = self._draws(s, slots, noise)
        code = draw_code(0, talker.logits(hidden))
        rest = talker.code_predictor(
            hidden, talker.model.codec_embedding(code), lambda book, logits: draw_code(book + 1, logits)
        )
        codes = torch.cat([code[:, None], rest], dim=1)
        first, others = talker.model.codec_embedding.weight, talker.code_predictor.model.codec_embedding.weight
        next_inputs(codes, first, others, slots, s.text, s.text_end, s.frame, s.pad, s.input)
        return finish_frame(
            codes, slots, FrameRecord(s.codes, s.seen, s.still, s.position, s.frame), config.talker.eos_id
        )

    def decode(self, s: Slots, slots: Tensor, first: Tensor, frames: int) -> Tensor:
        """The samples of so many frames of each of these slots [B] from frame first [B] on: [B, samples]."""
        columns = torch.arange(frames, device=self.device)
        codes = s.codes[slots[:, None], (first[:, None] + columns) % s.codes.shape[1]]
        samples, _ = self.codec(codes, s.codec, slots)
        return samples

    def _draws(self, s: Slots, slots: Tensor, noise: Noise) -> Draw:
        """How the codes of one frame are drawn: draw(codebook from 0, logits)."""
        talker, rest = self.config.talker, self.talker.code_predictor.residuals
        controls = talker.vocab_size - CONTROL_IDS
        rules = FirstCodeRules(s.seen, s.least, s.budget, END_PRESSURE, talker.eos_id, controls)
        if noise is keyed_noise and kernels.active(s.input):
            first_draws = DrawInputs(slots, s.talker_params, s.key, s.segment, s.frame)
            rest_draws = replace(first_draws, params=s.predictor_params)
            return lambda book, logits: (
                draw_keyed(logits, book, rest_draws) if book else draw_keyed(logits, 0, first_draws, rules)
            )
        key, segment, frame = s.key[slots], s.segment[slots], s.frame[slots]
        first_params, params = s.talker_params[slots], s.predictor_params[slots]
        first_noise = noise(key, segment, frame, 0, 1, talker.vocab_size)[:, 0]
        rest_noise = noise(key, segment, frame, 1, rest, self.config.predictor.vocab_size)

        def draw_code(book: int, logits: Tensor) -> Tensor:
            if book:
                return draw(logits, params, rest_noise[:, book - 1])
            return draw(first_code_scores(logits, rules, slots, frame, first_params), first_params, first_noise)

        return draw_code
