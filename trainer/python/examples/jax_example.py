"""Classifies the points of two spirals with a small network in JAX:

    psd --set 'optimizer={"type":"adam","lr":0.01}' --set policy.type=locked
    python jax_example.py --server tcp://localhost:5500 --rank 0 --world-size 1
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp

import psd.jax


def network(key: jax.Array, sizes: tuple[int, ...]) -> list[dict[str, jax.Array]]:
    keys = jax.random.split(key, len(sizes))
    return [{"w": jax.random.normal(key, (wide, next_)) * (2 / wide) ** 0.5, "b": jnp.zeros(next_)}
            for key, wide, next_ in zip(keys, sizes, sizes[1:])]


def logits(parameters: Any, x: jax.Array) -> jax.Array:
    for layer in parameters[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return jnp.ravel(x @ parameters[-1]["w"] + parameters[-1]["b"])


def loss(parameters: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(jnp.logaddexp(0, -y * logits(parameters, x)))


def spirals(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Points of two arms, labelled −1 and 1."""
    turn, arm = jax.random.split(key)
    radius, y = jax.random.uniform(turn, (count,), minval=0.1), jax.random.rademacher(arm, (count,), jnp.float32)
    angle = 6 * radius + jnp.pi * (y > 0)
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], 1), y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--rank", type=int, help="default: the environment's RANK, or else the lowest free rank")
    parser.add_argument("--world-size", type=int, help="default: the environment's WORLD_SIZE, or else as configured at the daemon")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=128)
    arguments = parser.parse_args()

    slope = jax.jit(jax.grad(loss))
    with psd.jax.Trainer(network(jax.random.key(1), (2, 32, 32, 1)), arguments.server, rank=arguments.rank,
                         world_size=arguments.world_size) as trainer:
        draws = jax.random.key(100 + trainer.rank)
        for step in range(arguments.steps):
            x, y = spirals(jax.random.fold_in(draws, step), arguments.batch_size)
            trainer.push(slope(trainer.pull(), x, y), samples=arguments.batch_size)
        parameters = trainer.pull()
    x, y = spirals(jax.random.key(0), 2000)
    print(f"rank {trainer.rank}: accuracy {float(jnp.mean((logits(parameters, x) > 0) == (y > 0))):.2%}")


if __name__ == "__main__":
    main()
