# SPDX-License-Identifier: Apache-2.0
"""The codec's encoder: timed phonemes and prosody to codes. It is used in training only, not part of the checkpoint.

No code is computed from audio: the teacher's durations, pitch and energy of a text determine all of them, so they can
be predicted from text, and all texts have them. Code 0 is the phonemes of a frame. Code 1 is the harmonic source:
voice, pitch and phase (source.py). Codes 2 and up quantize what a wide context of phonemes, pitch and energy says about
the sound.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.oscillator import code_phasors
from training.source import LOUDEST, SOURCE_CODES, source_table
from training.units import UNITS_PER_FRAME

PHONEMES = 178  # the teacher's vocabulary
MAX_UNIT_COUNT = 15
BEFORE, AFTER = 12, 15  # units of context of a frame
WINDOW = BEFORE + UNITS_PER_FRAME + AFTER
NEAR = slice(BEFORE - 1, BEFORE + UNITS_PER_FRAME + 3)  # context of code 0; audio precedes its label by a unit or two
NEAR_UNITS = NEAR.stop - NEAR.start
SHIFT = 1  # units by which the predicted phoneme labels are later
FRAMES_BEFORE, FRAMES_AFTER = 3, 4  # frames around a frame whose pitch is part of its context
SOURCES = FRAMES_BEFORE + 1 + FRAMES_AFTER
LOUDNESS_SCALE = 40.0  # a standard deviation
PHASOR_SHARE = 0.1  # initial scale of residual codes in the phasor channels (oscillator.py)
DECAY = 0.99
DEAD = 0.1  # entries used less than this share of the mean are re-initialised


class UnitEmbedding(nn.Module):
    """Units [*,4] to vectors: the phoneme, and the numbers of its units before and after this one.

    The last feature, loudness, is not read.
    """

    size = 80

    def __init__(self) -> None:
        super().__init__()
        self.phoneme = nn.Embedding(PHONEMES, 48)
        self.passed = nn.Embedding(MAX_UNIT_COUNT + 1, 16)
        self.left = nn.Embedding(MAX_UNIT_COUNT + 1, 16)

    def forward(self, units: Tensor) -> Tensor:
        phoneme, passed, left, _ = units.long().unbind(-1)
        return torch.cat([self.phoneme(phoneme), self.passed(passed), self.left(left)], -1)


class PhonemeEncoder(nn.Module):
    """Phonetic content of each frame from its window of units: [B,T,WINDOW,4] -> [B,T,dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.units = UnitEmbedding()
        self.net = nn.Sequential(
            nn.Linear(NEAR_UNITS * UnitEmbedding.size, 512),
            nn.GELU(),
            nn.Linear(512, 512),
            nn.GELU(),
            nn.Linear(512, dim),
        )
        self.name = nn.Sequential(nn.Linear(dim, 256), nn.GELU(), nn.Linear(256, UNITS_PER_FRAME * PHONEMES))

    def forward(self, window: Tensor) -> Tensor:
        return self.net(self.units(window[..., NEAR, :]).flatten(-2))

    def phoneme_loss(self, code: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy and accuracy of the frame's phonemes, predicted from its quantized code 0."""
        target = window[:, :, BEFORE + SHIFT : BEFORE + SHIFT + UNITS_PER_FRAME, 0].long()
        scores = self.name(code).unflatten(-1, (UNITS_PER_FRAME, PHONEMES))
        right = (scores.argmax(-1) == target).float().mean()
        return F.cross_entropy(scores.flatten(0, 2), target.flatten()), right


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


class ContextEncoder(nn.Module):
    """Sound of each frame from its window of units, with their loudness, and the pitch around it.

    Units [B,T,WINDOW,4] and source codes [B,T,SOURCES] to [B,T,size]. Convolutions need less speech than a
    matrix with weights for each unit.
    """

    size, channels = 384, 128
    pitch: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pitch", source_table(), persistent=False)
        self.units = UnitEmbedding()
        self.enter = nn.Conv1d(UnitEmbedding.size, self.channels, 3)
        self.convs = nn.ModuleList(nn.Conv1d(self.channels, self.channels, 3) for _ in range(2))
        width = WINDOW - 2 * (1 + len(self.convs))  # each convolution shortens the window
        self.join = nn.Linear(width * self.channels, self.size)
        self.prosody = nn.Linear(WINDOW + SOURCES * self.pitch.shape[1], self.size)
        self.layers = nn.Sequential(*(Layer(self.size) for _ in range(2)), nn.LayerNorm(self.size))

    def forward(self, window: Tensor, source: Tensor) -> Tensor:
        x = F.gelu(self.enter(self.units(window).flatten(0, 1).transpose(1, 2)))
        for conv in self.convs:
            x = x[..., 1:-1] + F.gelu(conv(x))
        context = self.join(x.flatten(1).unflatten(0, window.shape[:2]))
        loudness = (window[..., -1] - LOUDEST / 2) / LOUDNESS_SCALE
        return self.layers(context + self.prosody(torch.cat([loudness, self.pitch[source].flatten(-2)], -1)))


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
    """Windows of units and source codes to codes; codebook 0 has its own size.

    Source codes [B,T,SOURCES] are those of the frame and its neighbours.
    """

    def __init__(self, books: int, first_size: int, rest_size: int, dim: int) -> None:
        super().__init__()
        self.phonemes = PhonemeEncoder(dim)
        self.context = ContextEncoder()
        self.source = nn.Embedding(SOURCE_CODES, dim)
        with torch.no_grad():
            phasors = code_phasors()
            table = torch.cat([phasors, source_table()], 1)
            self.source.weight.zero_()
            self.source.weight[:, : table.shape[1]] = table
        self.rest = nn.Linear(self.context.size + 2 * dim, dim)
        with torch.no_grad():
            self.rest.weight[: phasors.shape[1]] *= PHASOR_SHARE
        self.first = Codes(first_size, dim)
        self.books = nn.ModuleList(Codes(rest_size, dim) for _ in range(books - 2))

    def plain(self, window: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """Both parts without quantization, for the start of training."""
        first, harmonic = self.phonemes(window), self._harmonic(source)
        return first, harmonic + self._detail(window, source, first.detach())

    def forward(self, window: Tensor, source: Tensor, kept: Tensor | None = None, learn: bool = False) -> Coded:
        """kept [B]: number of codes of each row that the decoder receives, at least 2; by default all."""
        first = self.phonemes(window)
        flat = first.flatten(0, 1)
        codes = [self.first.nearest(flat.detach()), source[..., FRAMES_BEFORE].flatten()]
        chosen = F.embedding(codes[0], self.first.table()).detach()
        commitment = F.mse_loss(flat, chosen)
        if learn:
            self.first.learn(flat.detach(), codes[0])
        first = (flat + (chosen - flat).detach()).view_as(first)

        harmonic = self._harmonic(source)
        detail = self._detail(window, source, chosen.view_as(first)).flatten(0, 1)
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

    @torch.no_grad()
    def initialise_codebooks(self, window: Tensor, source: Tensor) -> None:
        first = self.phonemes(window)
        flat = first.flatten(0, 1)
        self.first.start(flat)
        chosen = F.embedding(self.first.nearest(flat), self.first.table()).view_as(first)
        left = self._detail(window, source, chosen).flatten(0, 1)
        for book in self._books():
            book.start(left)
            left = left - F.embedding(book.nearest(left), book.table())

    def rest_tables(self) -> list[Tensor]:
        """The entries of codebooks 1 and up."""
        return [self.source.weight, *(book.table() for book in self._books())]

    def _harmonic(self, source: Tensor) -> Tensor:
        return self.source(source[..., FRAMES_BEFORE])

    def _detail(self, window: Tensor, source: Tensor, first: Tensor) -> Tensor:
        context = self.context(window, source)
        return self.rest(torch.cat([context, first, self._harmonic(source).detach()], -1))

    def _books(self) -> Iterator[Codes]:
        for book in self.books:
            assert isinstance(book, Codes)
            yield book
