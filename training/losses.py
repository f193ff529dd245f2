# SPDX-License-Identifier: Apache-2.0
"""Teacher-forced forward pass of talker and code predictor, and their losses."""

import torch
from torch import Tensor
from torch.nn import functional as F

from polyvox.models.layers.code_predictor import CodePredictor
from polyvox.models.layers.rotary import RotaryEmbedding
from polyvox.models.protocol import Attend
from polyvox.models.qwen3_tts.talker import Talker
from training.batches import IGNORED, Batch
from training.layout import CODE_0_SIZE, NUM_CODEBOOKS


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention over whole sequences."""
    del layer
    q, k, v = (x.transpose(1, 2).to(v.dtype) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def read(model: Talker, batch: Batch, frames: Tensor, attend: Attend = causal) -> Tensor:
    """Hidden states [B,L,hidden]; frames are the input codes."""
    rows = input_rows(model, batch, frames)
    positions = torch.arange(rows.shape[1], device=rows.device)[None]
    return model(rows, positions, attend)


def input_rows(model: Talker, batch: Batch, frames: Tensor) -> Tensor:
    """The sum of all embeddings of a row, [B,L,hidden]."""
    rows = model.text_rows(batch.text)
    rows = rows + _looked_up(batch.control[..., None], model.model.codec_embedding.weight[None]).sum(-2)
    rows = rows + _looked_up(frames[..., :1], model.model.codec_embedding.weight[None]).sum(-2)
    return rows + _looked_up(frames[..., 1:], model.code_predictor.model.codec_embedding.weight).sum(-2)


def code_0_scores(model: Talker, hidden: Tensor, end: int) -> Tensor:
    """Logits of all codes 0 and, last, of end of speech: [..., CODE_0_SIZE + 1]."""
    weight = model.codec_head.weight
    return F.linear(hidden, torch.cat([weight[:CODE_0_SIZE], weight[end : end + 1]]))


def code_0_loss(model: Talker, hidden: Tensor, batch: Batch, end: int) -> tuple[Tensor, Tensor]:
    """Cross-entropy and accuracy of code 0 and end of speech."""
    scores = code_0_scores(model, hidden, end).flatten(0, 1)
    target = torch.where(batch.target == end, CODE_0_SIZE, batch.target).flatten()
    right = (scores.argmax(-1) == target).sum() / (target != IGNORED).sum()
    return F.cross_entropy(scores.float(), target, ignore_index=IGNORED), right


def residual_loss(model: Talker, hidden: Tensor, batch: Batch, count: int | None) -> Tensor:
    """Cross-entropy of codes 1 and up, [NUM_CODEBOOKS - 1], over `count` frames, or all frames if None."""
    predictor: CodePredictor = model.code_predictor
    following, hidden = batch.following.flatten(0, 1), hidden.flatten(0, 1)
    known = following[:, 0] >= 0
    if count is not None:
        # A fixed number of rows in random order, those before a frame first, so that shapes are constant.
        chosen = (known + torch.rand(len(known), device=known.device)).topk(count).indices
        following, hidden, known = following[chosen], hidden[chosen], known[chosen]
    codes = following.clamp(min=0)
    first = model.model.codec_embedding(codes[:, :1])
    rest = predictor.model.codec_embedding.lookup(codes[:, 1:])[:, :-1]
    rows = torch.cat([hidden[:, None].to(first.dtype), first, rest], 1)
    x = predictor.small_to_mtp_projection(rows)
    positions = torch.arange(rows.shape[1], device=rows.device)[None]
    x = predictor.model.run(x, RotaryEmbedding(positions, predictor.config.transformer, x.dtype), causal)
    scores = torch.einsum("nbd,bvd->nbv", x[:, 1:], predictor.lm_head.weight.to(x.dtype)).float()
    losses = F.cross_entropy(scores.flatten(0, 1), codes[:, 1:].flatten(), reduction="none").view(-1, NUM_CODEBOOKS - 1)
    return (losses * known[:, None]).sum(0) / known.sum().clamp(min=1)


def predict_codes(model: Talker, hidden: Tensor, first: Tensor) -> Tensor:
    """The most likely codes 1 and up [N,NUM_CODEBOOKS - 1] after hidden states [N,hidden] and codes 0 [N]."""
    predictor: CodePredictor = model.code_predictor
    embedded = model.model.codec_embedding(first).to(hidden.dtype)
    return torch.stack(predictor(predictor.inputs(hidden, embedded), lambda _, scores: scores.argmax(-1)), dim=1)


def _looked_up(ids: Tensor, tables: Tensor) -> Tensor:
    """Row ids[..., i] of table i; zero where the id is negative."""
    offsets = torch.arange(len(tables), device=ids.device) * tables.shape[1]
    found = F.embedding(ids.clamp(min=0) + offsets, tables.flatten(0, 1))
    return found * (ids >= 0)[..., None]
