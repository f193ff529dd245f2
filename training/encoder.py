# SPDX-License-Identifier: Apache-2.0
"""The codec's encoder: speech and phonemes to codes. It is used in training only and is not part of the checkpoint.

Code 0 is computed from the teacher's phonemes and their timing alone, so it can be predicted from text. Code 1 is the
harmonic source: voice, pitch and phase (source.py). Codes 2 and up are a residual quantization of the audio (loudness,
timbre, detail).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.features import COLUMNS, MELS, LogMel
from training.oscillator import code_phasors
from training.source import SOURCE_CODES, source_table
from training.units import MAX_UNIT_COUNT, UNITS_PER_FRAME

PHONEMES = 178  # the teacher's vocabulary
BEFORE, AFTER = 1, 3  # context of code 0 in units; audio precedes its label by a unit or two
WINDOW = BEFORE + UNITS_PER_FRAME + AFTER
SHIFT = 1  # units by which the predicted phoneme labels are later
MARGIN = 2  # frames of audio context on each side
PHASOR_SHARE = 0.1  # initial scale of residual codes in the phasor channels (oscillator.py)
DECAY = 0.99
DEAD = 0.1  # entries used less than this share of the mean are re-initialised


class Block(nn.Module):
    def __init__(self, size: int, kernel: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(size, size, kernel, padding=kernel // 2, groups=size)
        self.norm = nn.LayerNorm(size)
        self.wide = nn.Linear(size, 3 * size)
        self.narrow = nn.Linear(3 * size, size)
        self.gamma = nn.Parameter(torch.full((size,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.mix(x).transpose(1, 2))
        return x + (self.gamma * self.narrow(F.gelu(self.wide(y)))).transpose(1, 2)


class PhonemeEncoder(nn.Module):
    """Phonetic content of each frame from its window of units: [B,T,WINDOW,FEATURES] -> [B,T,dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.phoneme = nn.Embedding(PHONEMES, 48)
        self.passed = nn.Embedding(MAX_UNIT_COUNT + 1, 16)
        self.left = nn.Embedding(MAX_UNIT_COUNT + 1, 16)
        self.net = nn.Sequential(
            nn.Linear(WINDOW * 80, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, dim)
        )
        self.name = nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, UNITS_PER_FRAME * PHONEMES))

    def forward(self, window: Tensor) -> Tensor:
        phoneme, passed, left = window.long().unbind(-1)
        return self.net(torch.cat([self.phoneme(phoneme), self.passed(passed), self.left(left)], -1).flatten(-2))

    def phoneme_loss(self, code: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy and accuracy of the frame's phonemes, predicted from its quantized code 0."""
        target = window[:, :, BEFORE + SHIFT : BEFORE + SHIFT + UNITS_PER_FRAME, 0].long()
        scores = self.name(code).unflatten(-1, (UNITS_PER_FRAME, PHONEMES))
        right = (scores.argmax(-1) == target).float().mean()
        return F.cross_entropy(scores.flatten(0, 2), target.flatten()), right


class SoundEncoder(nn.Module):
    """Detail of each frame from a log-mel spectrum with a margin on both sides: [B,MELS,columns] -> [B,T,size]."""

    def __init__(self, size: int = 384) -> None:
        super().__init__()
        self.mel = LogMel()
        wide = 256
        self.columns = nn.Sequential(nn.Conv1d(MELS, wide, 3, padding=1), *(Block(wide, 7) for _ in range(3)))
        self.frames = nn.Sequential(nn.Conv1d(wide, size, COLUMNS, stride=COLUMNS), *(Block(size, 3) for _ in range(2)))
        self.norm = nn.LayerNorm(size)

    def forward(self, mel: Tensor) -> Tensor:
        return self.norm(self.frames(self.columns(mel))[..., MARGIN:-MARGIN].transpose(1, 2))


class Codes(nn.Module):
    """One codebook; entries are exponential moving averages of the vectors assigned to them."""

    sums: Tensor
    uses: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(size, dim))
        self.register_buffer("uses", torch.zeros(size))

    def table(self) -> Tensor:
        return self.sums / self.uses.clamp(min=1e-5)[:, None]

    def nearest(self, x: Tensor) -> Tensor:
        """[N,dim] -> [N]"""
        table = self.table()
        return (table.square().sum(1) - 2 * x @ table.t()).argmin(1)

    @torch.no_grad()
    def learn(self, x: Tensor, codes: Tensor) -> None:
        """Update the moving averages; unused entries are re-initialised from the batch."""
        ones = torch.ones(len(x), device=x.device)
        self.uses.mul_(DECAY).index_add_(0, codes, ones, alpha=1 - DECAY)
        self.sums.mul_(DECAY).index_add_(0, codes, x, alpha=1 - DECAY)
        mean = self.uses.mean()
        dead = self.uses < DEAD * mean
        replacement = x[torch.randint(len(x), (len(self.uses),), device=x.device)]
        self.sums.copy_(torch.where(dead[:, None], replacement * mean * 0.5, self.sums))
        self.uses.copy_(torch.where(dead, mean * 0.5, self.uses))

    @torch.no_grad()
    def start(self, x: Tensor, rounds: int = 15) -> None:
        """Initialise by k-means from random points."""
        size = len(self.uses)
        table = x[torch.randint(len(x), (size,), device=x.device)]
        for _ in range(rounds):
            self.sums.copy_(table)
            self.uses.fill_(1.0)
            codes = self.nearest(x)
            uses = torch.zeros_like(self.uses).index_add_(0, codes, torch.ones(len(x), device=x.device))
            sums = torch.zeros_like(self.sums).index_add_(0, codes, x)
            fresh = x[torch.randint(len(x), (size,), device=x.device)]
            table = torch.where(uses[:, None] > 0, sums / uses.clamp(min=1)[:, None], fresh)
        self.sums.copy_(table)
        self.uses.fill_(1.0)


@dataclass(frozen=True, slots=True)
class Coded:
    """A batch of encoded frames: codes, decoder inputs and commitment loss."""

    codes: Tensor  # [B,T,books]
    first: Tensor  # [B,T,dim]: code 0, straight through
    rest: Tensor  # [B,T,dim]: the sum of the others, straight through
    commitment: Tensor


class SpeechEncoder(nn.Module):
    """Phoneme windows, source codes and audio to codes; codebook 0 has its own size."""

    def __init__(self, books: int, first_size: int, rest_size: int, dim: int) -> None:
        super().__init__()
        self.phonemes = PhonemeEncoder(dim)
        self.sound = SoundEncoder()
        self.source = nn.Embedding(SOURCE_CODES, dim)
        with torch.no_grad():
            phasors = code_phasors()
            table = torch.cat([phasors, source_table()], 1)
            self.source.weight.zero_()
            self.source.weight[:, : table.shape[1]] = table
        self.rest = nn.Linear(self.sound.norm.normalized_shape[0] + 2 * dim, dim)
        with torch.no_grad():
            self.rest.weight[: phasors.shape[1]] *= PHASOR_SHARE
        self.first = Codes(first_size, dim)
        self.books = nn.ModuleList(Codes(rest_size, dim) for _ in range(books - 2))

    def plain(self, window: Tensor, source: Tensor, mel: Tensor) -> tuple[Tensor, Tensor]:
        """Both parts without quantization, for the start of training."""
        first, harmonic = self.phonemes(window), self.source(source)
        return first, harmonic + self._detail(mel, first.detach(), harmonic)

    def forward(
        self, window: Tensor, source: Tensor, mel: Tensor, kept: Tensor | None = None, learn: bool = False
    ) -> Coded:
        """kept [B]: number of codes of each row that the decoder receives, at least 2; by default all."""
        first = self.phonemes(window)
        flat = first.flatten(0, 1)
        codes = [self.first.nearest(flat.detach()), source.flatten()]
        chosen = F.embedding(codes[0], self.first.table()).detach()
        commitment = F.mse_loss(flat, chosen)
        if learn:
            self.first.learn(flat.detach(), codes[0])
        first = (flat + (chosen - flat).detach()).view_as(first)

        harmonic = self.source(source)
        detail = self._detail(mel, chosen.view_as(first), harmonic).flatten(0, 1)
        left, total = detail, torch.zeros_like(detail)
        shown = kept if kept is not None else torch.full((len(first),), 2 + len(self.books), device=first.device)
        shown = shown[:, None].expand(first.shape[:2]).flatten()[:, None]
        for number, book in enumerate(self._books(), 2):
            codes.append(book.nearest(left.detach()))
            chosen = F.embedding(codes[-1], book.table()).detach()
            commitment = commitment + F.mse_loss(left, chosen)
            if learn:
                book.learn(left.detach(), codes[-1])
            left = left - chosen
            total = total + chosen * (shown > number)
        visible = detail * (shown > 2)
        rest = harmonic + (visible + (total - visible).detach()).view_as(harmonic)
        return Coded(torch.stack(codes, -1).view(*rest.shape[:2], -1), first, rest, commitment)

    def first_codes(self, window: Tensor) -> Tensor:
        """Code 0, which needs no audio: [B,T,WINDOW,FEATURES] -> [B,T]"""
        return self.first.nearest(self.phonemes(window).flatten(0, 1)).view(window.shape[:2])

    @torch.no_grad()
    def initialise_codebooks(self, window: Tensor, source: Tensor, mel: Tensor) -> None:
        first = self.phonemes(window)
        flat = first.flatten(0, 1)
        self.first.start(flat)
        chosen = F.embedding(self.first.nearest(flat), self.first.table()).view_as(first)
        left = self._detail(mel, chosen, self.source(source)).flatten(0, 1)
        for book in self._books():
            book.start(left)
            left = left - F.embedding(book.nearest(left), book.table())

    def rest_tables(self) -> list[Tensor]:
        """The entries of codebooks 1 and up."""
        return [self.source.weight, *(book.table() for book in self._books())]

    def _detail(self, mel: Tensor, first: Tensor, harmonic: Tensor) -> Tensor:
        return self.rest(torch.cat([self.sound(mel), first, harmonic.detach()], -1))

    def _books(self) -> Iterator[Codes]:
        for book in self.books:
            assert isinstance(book, Codes)
            yield book
