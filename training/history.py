# SPDX-License-Identifier: Apache-2.0
"""The frames that the talker reads in training: the true ones with the errors of inference.

At inference the talker reads frames that it has generated. A talker that reads true frames only learns utterances by
their codes 1 and up, such as the pitch, and reads the text wrongly after its own frames. So

- codes 1 and up are masked in some entries, codes 2 and up in some frames of the others;
- in a random half of the entries some codes 0 are drawn by the talker;
- entries that were only timed have no codes 1 and up: in the same half they get those of the code predictor;
- a few codes are replaced at random.
"""

import torch
from torch import Tensor

from polyvox.models.qwen3_tts.talker import Talker
from polyvox.models.talker_prompt import NO_CODE
from training.batches import Batch
from training.layout import CODE_0_SIZE, NUM_CODEBOOKS, RESIDUAL_SIZE
from training.losses import predict_codes, read

# Share of entries whose codes 1 and up are masked, and of frames whose codes 2 and up are.
MASKED_ENTRIES, MASKED_FRAMES = 0.25, 0.25
WRONG = (0.02, 0.01, 0.05)  # share of codes 0, 1 and others that are replaced at random
OWN_ROUNDS = 2  # for validation: in the first one, own codes follow true ones
OWN = 0.4  # share of codes 0 that the talker draws, in half of the entries


def frames_to_read(model: Talker, batch: Batch) -> Tensor:
    """Input frames [B,L,NUM_CODEBOOKS] of a training step."""
    return disturbed(with_own(model, batch))


@torch.no_grad()
def with_own(model: Talker, batch: Batch) -> Tensor:
    """Input frames; in a random half of the entries some codes are the talker's, generated after the true frames."""
    count = len(batch.text)
    half = torch.rand(count, device=batch.text.device).topk(count // 2).indices
    some = Batch(batch.text[half], batch.control[half], batch.frames[half], batch.target[half], batch.following[half])
    frames = batch.frames.clone()
    frames[half] = _after_own(some.frames, own_frames(model, some, some.frames, OWN))
    return frames


@torch.no_grad()
def own_history(model: Talker, batch: Batch) -> Tensor:
    """Frames with true codes 0, whose codes 1 and up are the talker's, generated after such frames."""
    frames = batch.frames
    for _ in range(OWN_ROUNDS):
        frames = _shifted(own_frames(model, batch, frames, 0.0))
    return frames


def own_frames(model: Talker, batch: Batch, frames: Tensor, share: float) -> Tensor:
    """Generate the frame after each row: [B,L,NUM_CODEBOOKS].

    Code 0 is drawn in this share of frames and true in the others; codes 1 and up are the most likely ones. Rows that
    no frame follows have NO_CODE.
    """
    hidden, true = read(model, batch, frames), batch.following[..., 0]
    scores = model.codec_head(hidden)[..., :CODE_0_SIZE].float()
    gumbel = torch.rand_like(scores).clamp(min=1e-9).log().neg().log().neg()
    drawn = (scores + gumbel).argmax(-1)
    first = torch.where(torch.rand(true.shape, device=true.device) < share, drawn, true.clamp(min=0))
    rest = predict_codes(model, hidden.flatten(0, 1), first.flatten()).unflatten(0, first.shape)
    return torch.where((true >= 0)[..., None], torch.cat([first[..., None], rest], -1), NO_CODE)


def _after_own(frames: Tensor, generated: Tensor) -> Tensor:
    """Frames with generated codes 0 [B,L,NUM_CODEBOOKS]; generated codes 1 and up only where they are not known."""
    own = _shifted(generated)
    first = torch.where(own[..., :1] >= 0, own[..., :1], frames[..., :1])
    rest = torch.where(frames[..., 1:] >= 0, frames[..., 1:], own[..., 1:])
    return torch.cat([first, rest], -1)


def _shifted(generated: Tensor) -> Tensor:
    """The frame after each row as the frame of the next row."""
    return torch.cat([torch.full_like(generated[:, :1], NO_CODE), generated[:, :-1]], 1)


def disturbed(frames: Tensor) -> Tensor:
    """Frames with some codes replaced and some masked."""
    device = frames.device
    shares = zip((1, 1, NUM_CODEBOOKS - 2), WRONG, strict=True)
    wrong = torch.cat([torch.full((count,), share, device=device) for count, share in shares])
    other = torch.randint(RESIDUAL_SIZE, frames.shape, device=device)
    other[..., 0] = torch.randint(CODE_0_SIZE, frames.shape[:-1], device=device)
    frames = torch.where((torch.rand(frames.shape, device=device) < wrong) & (frames >= 0), other, frames)
    masked = torch.rand(len(frames), 1, device=device) < MASKED_ENTRIES
    masked_rest = masked | (torch.rand(frames.shape[:2], device=device) < MASKED_FRAMES)
    code_1 = torch.where(masked[..., None], NO_CODE, frames[..., 1:2])
    rest = torch.where(masked_rest[..., None], NO_CODE, frames[..., 2:])
    return torch.cat([frames[..., :1], code_1, rest], -1)
