import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DEVICE, Loaded
from polyvox.models.qwen3_tts.config import Sampling
from polyvox.models.qwen3_tts.prompt import Layout, Prompt, build_prompt
from polyvox.models.qwen3_tts.sampling import KeyedNoise
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
    model = tts.model
    prompts, seeds, sampling = zip(*requests, strict=True)
    noise = KeyedNoise(seeds, [0] * len(seeds), model.device)
    streams = model.prefill([model.embed(p) for p in prompts], [p.trailing for p in prompts], sampling, noise)
    spoken: list[list[list[int]]] = [[] for _ in requests]
    for _ in range(FRAMES):
        codes = model.frame(streams)
        for row in (~streams.ended).nonzero()[:, 0].tolist():
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
            build_prompt(tts.config, tts.tokenizer.role, tts.tokenizer.text(text), layout, "auto", voice),
            seed,
            params,
        )
        for text, layout, voice, seed, params in requests
    ]
    with torch.no_grad():
        together = speak(tts, ready)
        assert together == [speak(tts, [request])[0] for request in ready]


def test_the_cache_grows_without_changing_what_is_said(loaded: Loaded) -> None:
    tts = loaded("custom_voice", "float64")
    prompt = build_prompt(tts.config, tts.tokenizer.role, tts.tokenizer.text("a"), "streaming", "auto", "serena")
    greedy = [Sampling(temperature=0, predictor_temperature=0)]

    def codes(capacity: int | None) -> list[torch.Tensor]:
        noise = KeyedNoise([0], [0], tts.model.device)
        streams = tts.model.prefill([tts.model.embed(prompt)], [prompt.trailing], greedy, noise)
        if capacity:
            streams.cache.at(torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), capacity)
            assert streams.cache.keys.shape[3] == capacity
        return [tts.model.frame(streams) for _ in range(40)]

    grown, roomy = codes(None), codes(400)
    assert all(torch.equal(a, b) for a, b in zip(grown, roomy, strict=True))


def test_embedding_a_frame_does_not_mix_the_rows_of_a_batch(loaded: Loaded) -> None:
    talker = loaded("custom_voice", "float64").model.talker
    groups = talker.code_predictor.residuals + 1
    frames = torch.arange(3 * groups, device=DEVICE).view(3, groups) % 64
    together = talker.frame_rows(frames)
    assert together.shape == (3, talker.config.hidden_size)
    for i in range(3):
        torch.testing.assert_close(together[i : i + 1], talker.frame_rows(frames[i : i + 1]), rtol=0, atol=0)
