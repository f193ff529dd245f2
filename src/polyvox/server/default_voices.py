# SPDX-License-Identifier: Apache-2.0
"""Voices that clients send by default: OpenAI's names, and the ids and names of ElevenLabs' public default voices."""

from collections.abc import Sequence

from polyvox.models.info import Gender, ModelInfo

# In OpenAI's own order. Some clients accept no other name.
_OPENAI: dict[str, Gender] = {
    "alloy": "female",
    "ash": "male",
    "ballad": "male",
    "coral": "female",
    "echo": "male",
    "fable": "male",
    "onyx": "male",
    "nova": "female",
    "sage": "female",
    "shimmer": "female",
    "verse": "male",
    "marin": "female",
    "cedar": "male",
}
# Names by id.
_ELEVENLABS_FEMALE = {
    "21m00Tcm4TlvDq8ikWAM": "Rachel",
    "EXAVITQu4vr4xnSDxMaL": "Sarah",
    "hpp4J3VqNfWAUOO0d1Us": "Bella",
    "9BWtsMINqrJLrRacOk9x": "Aria",
    "FGY2WhTYpPnrIDTdsKH5": "Laura",
    "Xb7hH8MSUJpSbSDYk0k2": "Alice",
    "XrExE9yKIg1WjnnlVkGX": "Matilda",
    "cgSgspJ2msm6clMCkdW9": "Jessica",
    "pFZP5JQG7iQjIQuC4Bku": "Lily",
    "XB0fDUnXU5powFXDhCwa": "Charlotte",
    "AZnzlk1XvdvUeBnXmlld": "Domi",
    "LcfcDJNUP1GQjkzn1xUU": "Emily",
    "MF3mGyEYCl7XYWbV9V6O": "Elli",
    "ThT5KcBeYPX3keUQqHPh": "Dorothy",
    "jBpfuIE2acCO8z3wKNLl": "Gigi",
    "jsCqWAovK2LkecY7zXl4": "Freya",
    "oWAxZDx7w5VEj9dCyTzz": "Grace",
    "pMsXgVXv3BLzUgSXRplE": "Serena",
    "piTKgcLEGmPE4e6mEKli": "Nicole",
    "z9fAnlkpzviPz146aGWa": "Glinda",
    "zrHiDhphv9ZnVXBqCLjz": "Mimi",
    "SAz9YHcvj6GT2YYXdXww": "River",
}
_ELEVENLABS_MALE = {
    "pNInz6obpgDQGcFmaJgB": "Adam",
    "CwhRBWXzGAHq8TQ4Fs17": "Roger",
    "IKne3meq5aSn9XLyUdCD": "Charlie",
    "JBFqnCBsd6RMkjVDRZzb": "George",
    "N2lVS1w4EtoT3dr4eOWO": "Callum",
    "SOYHLrjzK2X1ezoPC6cr": "Harry",
    "TX3LPaxmHKxFdv7VOQHJ": "Liam",
    "bIHbv24MWmeRgasZH58o": "Will",
    "cjVigY5qzO86Huf0OWal": "Eric",
    "iP95p4xoKVk53GoZ742B": "Chris",
    "nPczCjzI2devNBz1zQrb": "Brian",
    "onwK4e9ZLuTAKqWW03F9": "Daniel",
    "pqHfZKP75CvOlQylNhV4": "Bill",
    "29vD33N1CtxCmqQRPOHJ": "Drew",
    "2EiwWnXFnvU5JabPnv8n": "Clyde",
    "5Q0t7uMcjvnagumLfvZi": "Paul",
    "CYw3kZ02Hs0563khs1Fj": "Dave",
    "D38z5RcWu1voky8WS1ja": "Fin",
    "ErXwobaYiN019PkySvjV": "Antoni",
    "GBv7mTt0atIp3Br8iCZE": "Thomas",
    "ODq5zmih8GrVes37Dizd": "Patrick",
    "TxGEqnHWrfWFTfGW9XjX": "Josh",
    "VR6AewLTigWG4xSOukaG": "Arnold",
    "ZQe5CZNOzWyzPSCn5a3c": "James",
    "Zlb1dXrM653N07WRdFW3": "Joseph",
    "bVMeCyTHy58xNoL34h3p": "Jeremy",
    "flq6f7yk4E4fJM5XTYuZ": "Michael",
    "g5CIjZEefAph4nQFvHAz": "Ethan",
    "t0jbNlBVZ17f02VDIeMI": "Jessie",
    "wViXBPUzp2ZZixB1xQuM": "Ryan",
    "yoZ06aMxZJJ28mfd3POQ": "Sam",
    "zcAOhNBS3c14rBihAFp1": "Giovanni",
}


def _ranks() -> dict[str, tuple[int, Gender, int]]:
    """Of each name and id in lower case: the rank in its list, its gender, and the rank among voices of its gender."""
    found: dict[str, tuple[int, Gender, int]] = {}
    by_gender: dict[Gender, int] = {"female": 0, "male": 0}
    for rank, (name, gender) in enumerate(_OPENAI.items()):
        found[name] = rank, gender, by_gender[gender]
        by_gender[gender] += 1
    genders: list[tuple[Gender, dict[str, str]]] = [("female", _ELEVENLABS_FEMALE), ("male", _ELEVENLABS_MALE)]
    for first, (gender, voices) in enumerate(genders):
        for rank, (identifier, name) in enumerate(voices.items()):
            found[identifier.lower()] = found[name.lower()] = 2 * rank + first, gender, rank
    return found


_RANKS = _ranks()


def is_default_voice(name: str) -> bool:
    return name.lower() in _RANKS


def substitute(name: str, info: ModelInfo, voices: Sequence[str]) -> str | None:
    """The available voice that a default voice maps to: one of its gender if the model's voices have one, in rotation.

    None if the name is no default voice, or if no voice is available.
    """
    if not is_default_voice(name) or not voices:
        return None
    rank, gender, rank_of_gender = _RANKS[name.lower()]
    fitting = [voice for voice in voices if info.voice_genders.get(voice) == gender]
    return fitting[rank_of_gender % len(fitting)] if fitting else voices[rank % len(voices)]
