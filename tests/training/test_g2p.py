# SPDX-License-Identifier: Apache-2.0
"""Training of the spelling model and the lexicon's sources."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from polyvox.text.phonemes.spelling_model import LABELS, LETTERS, SpellingModel, load_spelling_model
from training.g2p import SpellingNetwork, _loss, needed_slots, report, split, to_labels, words
from training.g2p_lexicon import cmudict_entries, misaki_entries

all_words = cache(words)


def test_the_served_model_computes_what_the_trained_network_computes() -> None:
    torch.manual_seed(0)
    network = SpellingNetwork().eval()
    network.load_arrays(network.arrays())  # rounded to float16, as saved
    model = SpellingModel(network.arrays())
    for word in ("cat", "it's", "zanthorple"):
        scores = network(torch.tensor([[LETTERS.index(letter) for letter in word]]))[0]
        best = scores.argmax(-1).tolist()
        spoken = [LABELS[label] for i, label in enumerate(best) if label and (not i or best[i - 1] != label)]
        assert model.pronounce(word).replace("ˈ", "").replace("ˌ", "") == "".join(spoken).replace("ˈ", "").replace(
            "ˌ", ""
        )


def test_training_reduces_the_loss() -> None:
    torch.manual_seed(0)
    network = SpellingNetwork()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    batch = [pair for pair in all_words()[::700] if len(pair[0]) == 7][:32]
    losses = []
    with torch.enable_grad():
        for _ in range(12):
            loss = _loss(network, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_families_of_words_are_held_out_together() -> None:
    training, held_out = split(all_words()[::10])
    assert len(held_out) > 300
    assert not {word[:5] for word, _ in training} & {word[:5] for word, _ in held_out}


def test_the_shipped_model_is_as_accurate_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    _, held_out = split(all_words())
    report(load_spelling_model(), held_out[::4])
    printed = capsys.readouterr().out
    right = float(printed.split("right ")[1].split("%")[0])
    assert right > 54  # 57 % of all


def test_labels_join_stress_and_vowel() -> None:
    assert to_labels("wˈɔTəɹ") == ["w", "ˈɔ", "T", "ə", "ɹ"]
    assert needed_slots([1, 1, 2]) == 4


def test_word_lists_are_read_in_their_formats(tmp_path: Path) -> None:
    gold = {"use": {"DEFAULT": "jˈuz", "NOUN": "jˈus"}, "water": "wˈɔɾəɹ", "IT": {"DEFAULT": "ɪt", "NOUN": None}}
    (tmp_path / "gold.json").write_text(json.dumps(gold))
    entries = dict(misaki_entries(tmp_path / "gold.json"))
    assert entries == {"use": "jˈuz NOUN=jˈus", "water": "wˈɔTəɹ", "IT": "ɪt"}
    (tmp_path / "dict").write_text("fbi EH1 F B IY1 AY1\nwater W AO1 T ER0 # note\nwater(2) W AA1 T ER0\n")
    assert dict(cmudict_entries(tmp_path / "dict")) == {"fbi": "ˌɛfbˌiˈI", "water": "wˈɔTəɹ"}
