# SPDX-License-Identifier: Apache-2.0
"""Find codes of the teacher's speech for an existing checkpoint whose encoder is lost.

Frame by frame, the candidates are the codes that the talker finds most likely after the frames chosen so far. The
frozen decoder renders each of them; the one whose sound is closest to the teacher's, less a penalty on its
log-probability, is kept.
"""

import torch
from torch import Tensor

from polyvox.models.qwen3_tts.codec import CodecDecoder, CodecState
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import Batches
from training.graph import half_precision
from training.layout import CODE_0_SIZE, NUM_CODEBOOKS
from training.losses import read
from training.spectrum import mel_bank
from training.units import FRAME

CANDIDATES = (12, 8, 8)  # of codes 0, 1 and 2; code 3 is the most likely one
PENALTY = 0.03  # of a nat of log-probability, in nats of mean log-mel distance
SCALES = ((1024, 240, 80), (512, 120, 48))
PAST = 1024  # samples before the frame that are compared with it


class CodeSearch:
    """Searches the codes of a batch of utterances in parallel."""

    def __init__(self, talker: Talker, decoder: CodecDecoder, batches: Batches, samples: Tensor) -> None:
        self.talker, self.decoder, self.batches, self.samples = talker, decoder, batches, samples
        self.device = samples.device
        self.banks = [mel_bank(size, bands).to(self.device) for size, _, bands in SCALES]
        self.windows = [torch.hann_window(size, device=self.device) for size, _, _ in SCALES]

    @torch.no_grad()
    def __call__(self, entries: Tensor, rows: int, frames: int) -> tuple[Tensor, dict[str, float]]:
        """Codes [B, frames, NUM_CODEBOOKS] of these entries, the first `frames` of each; and mean scores."""
        size, entry = len(entries), self.batches.entries[entries]
        whole = torch.zeros(size, dtype=torch.bool, device=self.device)
        batch = self.batches.rows(entries, whole, whole, rows)
        read_frames = torch.full_like(batch.frames, -1)
        begin = self.batches.prefix_length[entry[:, 4]] + entry[:, 1] + 2
        every = torch.arange(size, device=self.device)
        codes = torch.zeros(size, frames, NUM_CODEBOOKS, dtype=torch.int64, device=self.device)
        state = self.decoder.initial_state(size)
        past = torch.zeros(size, PAST, device=self.device)
        target_past = torch.zeros(size, PAST, device=self.device)
        offsets = torch.arange(FRAME, device=self.device)
        found = {"distance": 0.0, "log_probability": 0.0}
        counted = 0.0
        for frame in range(frames):
            row = (begin - 1 + frame).clamp(max=rows - 1)
            with half_precision(self.device):
                hidden = read(self.talker, batch, read_frames)[every, row]
            hidden = hidden.float()
            position = ((entry[:, 2] + frame) * FRAME)[:, None] + offsets
            target = self.samples[position.clamp(max=len(self.samples) - 1)].float() / 32767
            target_mels = self.log_mels(torch.cat([target_past, target], 1))
            log_first = self.talker.codec_head(hidden)[:, :CODE_0_SIZE].log_softmax(-1)
            value, first = log_first.topk(CANDIDATES[0])
            best, _, _ = self.choose(hidden, first, None, value, target_mels, past, state)
            chosen, log_chosen = first[every, best], value[every, best]
            ranks = torch.zeros(size, 0, dtype=torch.int64, device=self.device)
            for count in CANDIDATES[1:]:
                options = torch.arange(count, device=self.device).expand(size, count)
                best, made, distance = self.choose(
                    hidden, chosen[:, None].expand(size, count), (ranks, options), None, target_mels, past, state
                )
                ranks = torch.cat([ranks, best[:, None]], 1)
            kept_codes, kept_state, kept_samples = made
            inside = frame < entry[:, 3]
            codes[:, frame] = kept_codes
            state = kept_state
            read_frames[every, (row + 1).clamp(max=rows - 1)] = kept_codes
            past = torch.cat([past, kept_samples], 1)[:, -PAST:]
            target_past = torch.cat([target_past, target], 1)[:, -PAST:]
            found["distance"] += float((distance * inside).sum())
            found["log_probability"] += float((log_chosen * inside).sum())
            counted += float(inside.sum())
        return codes, {name: value / counted for name, value in found.items()}

    def choose(
        self,
        hidden: Tensor,
        first: Tensor,
        ranked: tuple[Tensor, Tensor] | None,
        log_probability: Tensor | None,
        target_mels: list[Tensor],
        past: Tensor,
        state: CodecState,
    ) -> tuple[Tensor, tuple[Tensor, CodecState, Tensor], Tensor]:
        """The best of the candidates [B,K], and its codes, decoder state, samples and distance."""
        size, count = first.shape
        every = torch.arange(size, device=self.device)
        score_of_ranks = torch.zeros(size * count, device=self.device)

        def pick(book: int, scores: Tensor) -> Tensor:
            nonlocal score_of_ranks
            if ranked is None or book > ranked[0].shape[1]:
                return scores.argmax(-1)
            fixed, options = ranked
            rank = options.reshape(-1) if book == fixed.shape[1] else fixed[:, book].repeat_interleave(count)
            value, ids = scores.float().log_softmax(-1).topk(max(CANDIDATES[1:]))
            if book == fixed.shape[1]:
                score_of_ranks = value.gather(1, rank[:, None])[:, 0]
            return ids.gather(1, rank[:, None])[:, 0]

        flat = first.reshape(-1)
        embedded = self.talker.model.codec_embedding(flat)
        rest = self.talker.code_predictor(hidden.repeat_interleave(count, 0), embedded, pick)
        codes = torch.cat([flat[:, None], rest], 1)
        expanded = {name: rows.repeat_interleave(count, 0) for name, rows in state.items()}
        samples, after = self.decoder(codes[:, None], expanded)
        made = self.log_mels(torch.cat([past.repeat_interleave(count, 0), samples], 1))
        distance = torch.stack(
            [
                (a.unflatten(0, (size, count)) - b[:, None]).abs().mean((-2, -1))
                for a, b in zip(made, target_mels, strict=True)
            ]
        ).mean(0)
        bonus = log_probability if log_probability is not None else score_of_ranks.view(size, count)
        best = (distance - PENALTY * bonus).argmin(1)
        index = every * count + best
        kept = {name: rows[index] for name, rows in after.items()}
        return best, (codes[index], kept, samples[index]), distance[every, best]

    def log_mels(self, samples: Tensor) -> list[Tensor]:
        found = []
        for (size, hop, _), bank, window in zip(SCALES, self.banks, self.windows, strict=True):
            spectrum = torch.stft(samples, size, hop, size, window, center=False, return_complex=True)
            found.append((bank @ spectrum.abs()).clamp(min=1e-3).log())
        return found
