import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DEVICE, Loaded
from parity import Batch
from polyvox.models.qwen3_tts.prompt import Prompt, build_prompt
from polyvox.models.request import Layout, Sampling
from polyvox.tts import TTS

FRAMES = 12
REQUEST = st.tuples(
    st.text("abc hello the", min_size=1, max_size=30).filter(str.strip),
    st.sampled_from(["whole", "streaming"]),
    st.sampled_from(["serena", "vivian", "eric"]),
    st.integers(0, 2**64 - 1),
    st.sampled_from([Sampling(), Sampling(temperature=0, predictor_temperature=0), Sampling(top_p=0.7)]),
)


def speak(tts: TTS, requests: list[tuple[Prompt, int, Sampling]]) -> list[list[list[int]]]:
    """The codes of each request's frames, all of them in one batch."""
    model = tts.speech.model
    prompts, seeds, sampling = zip(*requests, strict=True)
    batch = Batch(
        tts.speech,
        [model.embed(p)[0] for p in prompts],
        [model.text_rows(p.trailing) for p in prompts],
        sampling,
        seeds,
    )
    spoken: list[list[list[int]]] = [[] for _ in requests]
    for _ in range(FRAMES):
        codes, over = batch.frame()
        for row in (~over).nonzero()[:, 0].tolist():
            spoken[row].append(codes[row].tolist())
    return spoken


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(REQUEST, min_size=2, max_size=5))
def test_a_stream_in_a_crowd_says_what_it_says_alone(
    requests: list[tuple[str, Layout, str, int, Sampling]], loaded: Loaded
) -> None:
    tts = loaded("custom_voice", "float64")
    ready = [
        (
            build_prompt(
                tts.speech.config, tts.speech.tokenizer.role, tts.speech.tokenizer.text(text), layout, "auto", voice
            ),
            seed,
            params,
        )
        for text, layout, voice, seed, params in requests
    ]
    with torch.no_grad():
        together = speak(tts, ready)
        assert together == [speak(tts, [request])[0] for request in ready]


def test_embedding_a_frame_does_not_mix_the_rows_of_a_batch(loaded: Loaded) -> None:
    talker = loaded("custom_voice", "float64").speech.model.talker
    groups = talker.code_predictor.residuals + 1
    frames = torch.arange(3 * groups, device=DEVICE).view(3, groups) % 64
    together = talker.frame_rows(frames)
    assert together.shape == (3, talker.config.hidden_size)
    for i in range(3):
        torch.testing.assert_close(together[i : i + 1], talker.frame_rows(frames[i : i + 1]), rtol=0, atol=0)
