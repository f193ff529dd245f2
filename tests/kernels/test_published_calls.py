# SPDX-License-Identifier: Apache-2.0
"""The launches of a published model's calls on an H200, in order, listed without running them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polyvox.engine.config import EngineConfig
from polyvox.engine.generator_runner import GeneratorRunner
from polyvox.engine.graphs import GraphedSizes
from polyvox.engine.stream_state import CHUNK_SIZES
from polyvox.engine.vocoder_runner import VocoderRunner
from polyvox.kernels.cuda_source import CudaSource
from polyvox.kernels.gpu import GPUS, assume
from polyvox.kernels.launches import META, OnMetaDevice
from polyvox.kernels.lazy_triton import Kernel, intercepting_launches
from polyvox.models.registry import LoadOptions, random_model

STREAMS = 1024
TALKER_LAYERS, PREDICTOR_LAYERS, PASSES = 28, 5, 15


@pytest.fixture(scope="module", params=[torch.int8, torch.bfloat16], ids=["int8", "bfloat16"])
def runners(request: pytest.FixtureRequest) -> tuple[GeneratorRunner, VocoderRunner]:
    """With a KV cache of the default type, and of the model's."""
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaSource, "available", lambda _: True)
        speech = random_model("1.7B", LoadOptions(META, torch.bfloat16, kv_dtype=request.param))
        generator = GeneratorRunner(speech.generator, EngineConfig(STREAMS, 256), fixed_sizes=True)
        vocoder = VocoderRunner(
            speech.vocoder,
            generator.state.codes,
            STREAMS,
            small_model=False,
            deterministic=False,
            fixed_sizes=True,
            pcm=True,
        )
        return generator, vocoder


@pytest.fixture(autouse=True)
def _nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaSource, "available", lambda _: True)


def launches(call: Callable[[], object]) -> Counter[str]:
    """How often each kernel in Triton's language and each CUDA file is launched."""
    made: Counter[str] = Counter()

    def record(launched: Kernel | CudaSource, *_: object) -> None:
        made[launched.file if isinstance(launched, CudaSource) else launched.function.__name__] += 1

    with torch.inference_mode(), OnMetaDevice(), assume(GPUS[90]), intercepting_launches(record):
        call()
    return made


class PyTorchLaunches(TorchDispatchMode):
    """Records the operations of PyTorch that compute or copy something: their results are no views."""

    def __init__(self, made: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made = made

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = operation(*args, **(kwargs or {})), operation.overloadpacket.__name__
        made, given = (
            {each.untyped_storage()._cdata for each in tree_leaves(tree) if isinstance(each, torch.Tensor)}
            for tree in (result, (args, kwargs))
        )
        if "empty" not in name and (name.endswith("_") or not made <= given):
            self._made.append(f"PyTorch {name}")
        return result


def in_order(call: Callable[[], object]) -> list[str]:
    """The launches of kernels and of PyTorch."""
    made: list[str] = []

    def record(launched: Kernel | CudaSource, *_: object) -> None:
        made.append(launched.file if isinstance(launched, CudaSource) else launched.function.__name__)

    with (
        torch.inference_mode(), OnMetaDevice(), assume(GPUS[90]), intercepting_launches(record), PyTorchLaunches(made)
    ):  # fmt: skip
        call()
    return made


def frames(runners: tuple[GeneratorRunner, VocoderRunner]) -> GraphedSizes:
    graphs = runners[0].graphs
    assert graphs is not None
    return graphs.families[1]


@pytest.mark.parametrize("streams", [1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 320, 384, 512, 640, 768, 896, 1024])
def test_every_product_of_a_frame_step_has_a_kernel_or_is_the_librarys(
    streams: int, runners: tuple[GeneratorRunner, VocoderRunner]
) -> None:
    """Fused projections do not accept rows that would be multiplied without kernels."""
    made = launches(frames(runners)[streams].run)
    assert (made["draw_kernel"], made["code_draw.cu"]) == (0, PASSES + 1)


@pytest.mark.parametrize(("streams", "normed"), [(1, 0), (8, 0), (64, 0), (512, 1)])
def test_few_launches_are_between_the_products(
    streams: int, normed: int, runners: tuple[GeneratorRunner, VocoderRunner]
) -> None:
    """The samplers look up what the next pass reads; with few streams no launch computes a norm alone."""
    made = launches(frames(runners)[streams].run)
    assert (made["pre_norm_kernel"], made["pair_pre_norm_kernel"]) == (1, 1)
    assert (made["inputs_kernel"], made["finish_kernel"]) == (1, 1)
    assert bool(made["norm_kernel"]) == bool(normed)


@pytest.mark.parametrize("streams", [1, 2, 8, 16, 32, 64, 96, 128, 256, 512])
def test_pytorch_launches_nothing_in_the_code_predictor(
    streams: int, runners: tuple[GeneratorRunner, VocoderRunner]
) -> None:
    """Attention reads slots and positions before it waits: what PyTorch writes there might not be complete."""
    made = in_order(frames(runners)[streams].run)
    talker, first, last = (made.index(f"{name}_kernel") for name in ("pre_norm", "pair_pre_norm", "finish"))
    assert [name for name in made[first:last] if name.startswith("PyTorch")] == []
    # The positions are gathered before the launch that waits.
    assert [name for name in made[:talker] if not name.startswith("PyTorch")] == []


def test_frame_calls_know_their_rows(runners: tuple[GeneratorRunner, VocoderRunner]) -> None:
    """graph_memory.py depends on them."""
    assert all(call.rows == size for size, call in frames(runners).items())


def test_one_stream_copies_the_predictors_matrices_ahead(runners: tuple[GeneratorRunner, VocoderRunner]) -> None:
    made = launches(frames(runners)[1].run)
    # The first pass of the predictor has two rows. In the others, attention and its projection are one launch.
    layers = (PASSES - 1) * PREDICTOR_LAYERS
    assert made["attention_output.cu"] == layers
    # o of the talker, its head and the projection of its hidden state; q, k and v, gate and up, down, and heads.
    assert made["prefetch_vector.cu"] == TALKER_LAYERS + 2 + 3 * layers + PASSES
    assert made["prefetch_linear.cu"] == 4 * PREDICTOR_LAYERS
    assert made["warp_attention.cu"] == TALKER_LAYERS
    assert made["vector_kernel"] == 3 * TALKER_LAYERS


def test_eight_streams_copy_all_matrices_but_the_talkers_gates_ahead(
    runners: tuple[GeneratorRunner, VocoderRunner],
) -> None:
    made = launches(frames(runners)[8].run)
    layers = 4 * PREDICTOR_LAYERS
    assert made["prefetch_linear.cu"] == 3 * TALKER_LAYERS + 2 + (PASSES - 1) * layers + PASSES
    assert made["mid_batch_linear.cu"] == layers  # the first pass of the predictor, which has 16 rows
    assert made["matrix_kernel"] == TALKER_LAYERS
    assert made["add_splits_kernel"] == 0
    assert made["warp_attention.cu"] == TALKER_LAYERS
    assert made["pair_attention.cu"] == PREDICTOR_LAYERS
    assert made["page_attention.cu"] == (PASSES - 1) * PREDICTOR_LAYERS


def test_large_batches_have_fused_products(runners: tuple[GeneratorRunner, VocoderRunner]) -> None:
    layers, heads = 4 * PREDICTOR_LAYERS, 1
    by_streams = {
        count: launches(frames(runners)[count].run)["wgmma_linear.cu"] for count in (64, 96, 256, 320, 384, 512, 1024)
    }
    everything = 4 * TALKER_LAYERS + PASSES * (layers + heads)
    assert by_streams == {
        64: layers,  # the first pass of the predictor has two rows per stream
        96: everything,
        256: everything,
        320: (PASSES - 1) * (layers + heads),  # not the talker's, nor those of 640 rows
        384: PASSES * (layers + heads),
        512: everything,
        1024: everything,
    }


@pytest.mark.parametrize("streams", [1, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_the_talkers_attention_is_one_launch_per_layer(
    streams: int, runners: tuple[GeneratorRunner, VocoderRunner]
) -> None:
    made = launches(frames(runners)[streams].run)
    assert made["warp_attention.cu"] == TALKER_LAYERS
    assert made["decode_kernel"] == 0
    # The first pass of the predictor has two rows per stream, the others one.
    assert made["pair_attention.cu"] == PREDICTOR_LAYERS
    of_a_page = (
        "attention_output.cu" if streams == 1 else "page_attention.cu" if streams <= 128 else "large_batch_kernel"
    )
    assert made[of_a_page] == (PASSES - 1) * PREDICTOR_LAYERS


@pytest.mark.parametrize(("streams", "together"), [(1, True), (16, True), (32, False)])
def test_the_histories_of_a_short_codec_call_are_updated_once(
    streams: int, together: bool, runners: tuple[GeneratorRunner, VocoderRunner]
) -> None:
    graphs = runners[1].graphs
    assert graphs is not None
    made = launches(graphs.families[CHUNK_SIZES.index(4)][streams].run)
    assert made["history.cu"] == together
    assert (made["update_history_kernel"] == 0) == together
    assert made["sample_conv.cu"] == 1


@pytest.mark.parametrize(("streams", "passes"), [(16, PASSES), (32, PASSES), (64, PASSES - 1)])
def test_more_streams_copy_the_matrices_ahead(
    streams: int, passes: int, runners: tuple[GeneratorRunner, VocoderRunner]
) -> None:
    """All of the talker's, and those of the predictor's passes of 9 to 64 rows; the first has two rows per stream."""
    made = launches(frames(runners)[streams].run)
    # Also the projection of the talker's hidden states, and the heads of the predictor.
    assert made["mid_batch_linear.cu"] == 4 * TALKER_LAYERS + 1 + passes * 4 * PREDICTOR_LAYERS + PASSES
