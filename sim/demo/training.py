"""Two-rank data-parallel training of a small multilayer perceptron on handwritten digits.

Everything is 32-bit floats in a fixed order of operations, so the weights are a function of the seed alone as long as the exchanged gradients arrive unchanged:
one wrong bit anywhere on the way changes them. The exchange is the only thing that differs between the backends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

F32 = NDArray[np.float32]
RANKS = 2
HIDDEN = 64
CLASSES = 10


class Exchange(Protocol):
    """Carries each rank's gradient to the other rank."""

    def __call__(self, step: int, gradients: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """``gradients[r]`` is what rank r computed; returns what rank r received from the other."""
        ...


Rounds = Generator[tuple[int, tuple[bytes, bytes]], tuple[bytes, bytes], "Result"]


class MemoryExchange:
    """The reference: gradients handed over in memory."""

    def __call__(self, step: int, gradients: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        return gradients[1], gradients[0]


@dataclass(frozen=True)
class Digits:
    """scikit-learn's handwritten digits, scaled to 0..1 and split by a seeded shuffle."""

    train_x: F32
    train_y: NDArray[np.int64]
    test_x: F32
    test_y: NDArray[np.int64]

    @staticmethod
    def load(seed: int, held_out: int = 360) -> Digits:
        """All 1797 digits, ``held_out`` of them for the accuracy."""
        raw = load_digits()
        order = np.random.default_rng(seed).permutation(len(raw.target))
        x = (raw.data[order] / 16.0).astype(np.float32)
        y = raw.target[order].astype(np.int64)
        return Digits(x[held_out:], y[held_out:], x[:held_out], y[:held_out])


class Mlp:
    """64 inputs, one hidden layer with ReLU, softmax over ten classes. The parameters are one flat float32 vector."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.shapes = ((64, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
        scale = (np.sqrt(2 / 64), 0.0, np.sqrt(2 / HIDDEN), 0.0)
        self.flat: F32 = np.concatenate([
            (rng.standard_normal(shape) * s).astype(np.float32).ravel() for shape, s in zip(self.shapes, scale, strict=True)
        ])  # fmt: skip

    def _views(self, flat: F32) -> list[F32]:
        out, at = [], 0
        for shape in self.shapes:
            size = int(np.prod(shape))
            out.append(flat[at : at + size].reshape(shape))
            at += size
        return out

    def gradient(self, x: F32, y: NDArray[np.int64]) -> tuple[float, F32]:
        """Mean cross-entropy of a batch and its gradient, flat."""
        w1, b1, w2, b2 = self._views(self.flat)
        hidden = np.maximum(x @ w1 + b1, np.float32(0))
        logits = hidden @ w2 + b2
        logits -= logits.max(axis=1, keepdims=True)
        exp = np.exp(logits)
        p = exp / exp.sum(axis=1, keepdims=True)
        n = len(y)
        loss = float(-np.log(p[np.arange(n), y] + np.float32(1e-12)).mean())
        p[np.arange(n), y] -= np.float32(1)
        p /= np.float32(n)
        back = (p @ w2.T) * (hidden > 0)
        parts = (x.T @ back, back.sum(axis=0), hidden.T @ p, p.sum(axis=0))
        return loss, np.concatenate([part.astype(np.float32).ravel() for part in parts])

    def accuracy(self, x: F32, y: NDArray[np.int64]) -> float:
        """Share of right answers."""
        w1, b1, w2, b2 = self._views(self.flat)
        return float(((np.maximum(x @ w1 + b1, np.float32(0)) @ w2 + b2).argmax(axis=1) == y).mean())


@dataclass
class Progress:
    """What is known after a step."""

    step: int
    steps: int
    loss: float
    accuracy: float


@dataclass
class Result:
    """Outcome of a training run."""

    weights: bytes
    accuracy: float
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """Hyperparameters; the defaults reach 95 % of the held-out digits."""

    steps: int = 160
    batch: int = 128
    rate: float = 0.2
    momentum: float = 0.9
    seed: int = 1


def gradient_bytes() -> int:
    """Bytes of one gradient message."""
    return 4 * Mlp(0).flat.size


def _batches(count: int, settings: Settings) -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng(settings.seed + 1)
    while True:
        order = rng.permutation(count)
        for at in range(0, count - settings.batch + 1, settings.batch):
            yield order[at : at + settings.batch]


def train(exchange: Exchange, settings: Settings, watch: Callable[[Progress], None] | None = None) -> Result:
    """Trains both ranks step by step; see :func:`rounds`."""
    steps = rounds(settings, watch)
    step, gradients = next(steps)
    while True:
        try:
            step, gradients = steps.send(exchange(step, gradients))
        except StopIteration as end:
            result: Result = end.value
            return result


def rounds(settings: Settings, watch: Callable[[Progress], None] | None = None) -> Rounds:
    """The training as a generator: yields a step's number and both gradients, wants back what each rank received, returns the result.

    Each rank sees its half of every batch, and of the other's gradient only what came back.

    Raises:
        AssertionError: the ranks' weights differ after a step, which means that a gradient did not arrive as it was sent.
    """
    digits = Digits.load(settings.seed)
    ranks = [Mlp(settings.seed) for _ in range(RANKS)]
    speed = [np.zeros_like(rank.flat) for rank in ranks]
    result = Result(b"", 0.0)
    half = settings.batch // RANKS
    batches = _batches(len(digits.train_y), settings)
    for step in range(settings.steps):
        batch = next(batches)
        rate = np.float32(settings.rate * (1 - step / settings.steps))  # falls to nothing, so that the end is quiet
        losses, gradients = [], []
        for r, rank in enumerate(ranks):
            part = batch[r * half : (r + 1) * half]
            loss, gradient = rank.gradient(digits.train_x[part], digits.train_y[part])
            losses.append(loss)
            gradients.append(gradient)
        received = yield step, (gradients[0].tobytes(), gradients[1].tobytes())
        for r, rank in enumerate(ranks):
            other = np.frombuffer(received[r], dtype=np.float32)
            # Rank 0's gradient is always the first operand, so that both ranks compute the same bits.
            pair = (gradients[r], other) if r == 0 else (other, gradients[r])
            mean = (pair[0] + pair[1]) * np.float32(0.5)
            speed[r] = np.float32(settings.momentum) * speed[r] - rate * mean
            rank.flat = rank.flat + speed[r]
        assert ranks[0].flat.tobytes() == ranks[1].flat.tobytes(), f"the ranks differ after step {step}"
        result.losses.append(sum(losses) / RANKS)
        result.accuracies.append(ranks[0].accuracy(digits.test_x, digits.test_y))
        if watch is not None:
            watch(Progress(step + 1, settings.steps, result.losses[-1], result.accuracies[-1]))
    result.weights = ranks[0].flat.tobytes()
    result.accuracy = result.accuracies[-1]
    return result
