# SPDX-License-Identifier: Apache-2.0
"""The frames that the talker reads in training: the true ones with the errors of inference.

At inference the talker reads frames that it has generated. A talker that reads true frames only learns utterances by
their codes 1 and up, such as the pitch, and reads the text wrongly after its own frames. So

- in a random half of the entries, some codes 0 and all codes 1 and up are the talker's own;
- codes 1 and up are masked in some entries, codes 2 and up in some frames of the others, so that code 0 alone gives the
  position in the text;
- a few codes are replaced at random.

The phase of code 1 is counted from the start of an utterance. After frames with another pitch than the true one, the
true phase is of no use: the frame to predict continues the phase of the frame that is read.
"""

import torch
from torch import Tensor

from polyvox.models.qwen3_tts.talker import Talker
from polyvox.models.talker_prompt import NO_CODE
from training.batches import Batch
from training.layout import CODE_0_SIZE, NUM_CODEBOOKS, RESIDUAL_SIZE
from training.losses import predict_codes, read
from training.source import CLASSES, LOWEST, RANGE

# Share of entries whose codes 1 and up are masked, and of frames whose codes 2 and up are.
MASKED_ENTRIES, MASKED_FRAMES = 0.15, 0.15
WRONG = (0.02, 0.01, 0.05)  # share of codes 0, 1 and others that are replaced at random
OWN_ROUNDS = 2  # for validation: in the first one, own codes follow true ones
OWN = 0.4  # share of codes 0 that the talker draws, in half of the entries
PREDICTED = 0.6  # rows of those entries, relative to all, that may get own codes; more than are frames in most batches


def frames_to_read(model: Talker, batch: Batch, own: Tensor) -> Tensor:
    """Input frames [B,L,NUM_CODEBOOKS] of a training step; own: see `with_own`."""
    return disturbed(with_own(model, batch, own))


@torch.no_grad()
def with_own(model: Talker, batch: Batch, own: Tensor) -> Tensor:
    """Input frames; in a random half of the entries they are the talker's, generated after the true frames.

    own: probability with which an entry of that half has them; at the start of training they would be random.
    """
    count, device = len(batch.text), batch.text.device
    half = torch.rand(count, device=device).topk(count // 2).indices
    some, frames = batch[half], batch.frames.clone()
    generated = _shifted(own_frames(model, some, some.frames, OWN, PREDICTED))
    chosen = torch.rand(len(half), 1, 1, device=device) < own
    frames[half] = torch.where(chosen, generated, some.frames)
    return frames


def in_phase(following: Tensor, frames: Tensor) -> Tensor:
    """The frames to predict [B,L,NUM_CODEBOOKS], in phase with the frames that are read, where these have code 1."""
    read, code = frames[..., 1], following[..., 1]
    lowest = torch.where(read < RANGE * CLASSES, LOWEST[0], LOWEST[1])
    advance = read // CLASSES % RANGE + lowest
    continued = code // CLASSES * CLASSES + (read + advance) % CLASSES
    code = torch.where((read >= 0) & (code >= 0), continued, code)
    return torch.cat([following[..., :1], code[..., None], following[..., 2:]], -1)


@torch.no_grad()
def own_history(model: Talker, batch: Batch) -> Tensor:
    """Frames with true codes 0, whose codes 1 and up are the talker's, generated after such frames."""
    frames = batch.frames
    for _ in range(OWN_ROUNDS):
        frames = _shifted(own_frames(model, batch, frames, 0.0, 1.0))
    return frames


def own_frames(model: Talker, batch: Batch, frames: Tensor, share: float, predicted: float) -> Tensor:
    """Generate the frame after each row: [B,L,NUM_CODEBOOKS].

    Code 0 is drawn in this share of frames and true in the others. Codes 1 and up are the most likely ones in up to
    the share `predicted` of all rows, frames first, and true in the others. Rows that no frame follows have NO_CODE.
    """
    hidden, true = read(model, batch, frames).flatten(0, 1), batch.following.flatten(0, 1)
    is_frame = true[:, 0] >= 0
    # A fixed number of rows, so that shapes are constant.
    rows = (is_frame + torch.rand(len(true), device=true.device)).topk(int(predicted * len(true))).indices
    scores = model.codec_head(hidden[rows])[:, :CODE_0_SIZE].float()
    gumbel = torch.rand_like(scores).clamp(min=1e-9).log().neg().log().neg()
    is_drawn = torch.rand(len(rows), device=true.device) < share
    first = torch.where(is_drawn, (scores + gumbel).argmax(-1), true[rows, 0].clamp(min=0))
    made = true.clone()
    made[rows] = torch.cat([first[:, None], predict_codes(model, hidden[rows], first)], 1)
    return torch.where(is_frame[:, None], made, NO_CODE).view_as(batch.following)


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
