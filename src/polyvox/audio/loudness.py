"""How loud speech is, and making it as loud as the rest."""

import numpy as np

from polyvox.audio.clip import Samples

WINDOW_SECONDS = 0.05
GATE = 10 ** (-20 / 20)  # windows so far below the loudest tenth are pauses and do not count
TARGET = 10 ** (-22 / 20)  # of full scale, in speech: room for its peaks
MAX_GAIN = 10 ** (30 / 20)
KNEE = 0.8  # of full scale: peaks above it are rounded off, below it nothing is changed


def loudness(samples: Samples, sample_rate: int) -> float:
    """The root mean square of what is not a pause, of full scale; 0 where there is nothing."""
    window = int(WINDOW_SECONDS * sample_rate)
    count = len(samples) // window
    if not count:
        return float(np.sqrt(np.mean(np.square(samples)))) if len(samples) else 0.0
    power = np.square(samples[: count * window].astype(np.float64)).reshape(count, window).mean(1)
    loud = power >= np.quantile(power, 0.9) * GATE**2
    return float(np.sqrt(power[loud].mean()))


def levelled(samples: Samples, sample_rate: int) -> Samples:
    """The same speech at the loudness that all lines have; a copy."""
    measured = loudness(samples, sample_rate)
    louder = samples * np.float32(min(TARGET / measured, MAX_GAIN) if measured > 0 else 1.0)
    over = np.abs(louder) > KNEE
    louder[over] = np.sign(louder[over]) * (KNEE + (1 - KNEE) * np.tanh((np.abs(louder[over]) - KNEE) / (1 - KNEE)))
    return louder
