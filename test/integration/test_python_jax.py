"""psd.jax: pytrees pulled and pushed, the steps of a local optimizer, and errors."""

import importlib.util
import unittest

import numpy as np
import processes

import psd

HAVE_JAX = importlib.util.find_spec("jax") is not None
if HAVE_JAX:
    import jax
    import jax.numpy as jnp

    import psd.jax


@unittest.skipUnless(HAVE_JAX, "no jax (scripts/setup --tests brings it)")
class PythonJax(processes.ProcessTest):
    def parameters(self):
        first, second = jax.random.split(jax.random.key(1))
        return {"layers": [{"w": jax.random.normal(first, (4, 8)), "b": jnp.zeros(8)}, {"w": jax.random.normal(second, (8, 1)), "b": jnp.zeros(1)}],
                "scale": jnp.ones(())}

    def trainer(self, daemon, parameters, **options):
        trainer = psd.jax.Trainer(parameters, daemon.address, rank=0, world_size=1, **options)
        self.addCleanup(trainer.client.close)
        return trainer

    @staticmethod
    def loss(parameters, x, y):
        hidden = jnp.tanh(x @ parameters["layers"][0]["w"] + parameters["layers"][0]["b"])
        return jnp.mean((parameters["scale"] * (hidden @ parameters["layers"][1]["w"] + parameters["layers"][1]["b"]) - y) ** 2)

    def test_takes_the_steps_of_a_local_loop(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.05}')
        local = self.parameters()
        gradient, x = jax.grad(self.loss), jax.random.normal(jax.random.key(2), (32, 4))
        y = x.sum(1, keepdims=True)
        with psd.jax.Trainer(self.parameters(), daemon.address, rank=0, world_size=1) as trainer:
            self.assertEqual(list(trainer.model.shapes), ["layers.0.b", "layers.0.w", "layers.1.b", "layers.1.w", "scale"])
            first = trainer.pull()
            for _ in range(20):
                trainer.push(gradient(trainer.pull(), x, y), samples=32)
                local = jax.tree.map(lambda value, slope: value - 0.05 * slope, local, gradient(local, x, y))
            self.assertEqual((trainer.last_push.outcome, trainer.rank), ("applied", 0))
            mine = trainer.pull()
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), mine, local)
        jax.tree.map(np.testing.assert_array_equal, first, self.parameters())  # no later pull wrote into it
        self.assertEqual(daemon.status()["trainers"], [])

    def test_what_cannot_be_is_refused_in_one_line(self):
        daemon = self.daemon()
        trainer = self.trainer(daemon, {"w": jnp.zeros(3)})
        unused = "tcp://localhost:1"
        wrong = [
            (lambda: psd.jax.Trainer({"a": [jnp.zeros(2, jnp.int32)]}, unused), "leaf 'a.0' is int32; the daemon's parameters are arrays of float32"),
            (lambda: psd.jax.Trainer({"a": np.zeros(2)}, unused), "leaf 'a' is float64"),
            (lambda: psd.jax.Trainer({"a": 1.0}, unused), "leaf 'a' is float; "),
            (lambda: psd.jax.Trainer({}, unused), "no leaf"),
            (lambda: psd.jax.Trainer({"a.b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}}, unused), "two leaves have the same name"),
            (lambda: trainer.push({"v": jnp.zeros(3)}), "the parameters are"),
            (lambda: trainer.push({"w": jnp.zeros(4)}), r"gradient of 'w' has shape \(4,\); the parameter has \(3,\)"),
            (lambda: trainer.push({"w": jnp.zeros(3, jnp.float16)}), "gradient of 'w' is float16; the parameter is f32"),
        ]
        for call, message in wrong:
            with self.subTest(message), self.assertRaisesRegex(psd.InvalidArgument, message) as raised:
                call()
            self.assertNotIn("\n", str(raised.exception))
        with self.assertRaises(psd.NonFinite):
            trainer.push({"w": jnp.full(3, jnp.nan)})
        with self.assertRaisesRegex(psd.InvalidArgument, "leaf 'w' has no value while a function is traced"):
            jax.jit(lambda slope: trainer.push({"w": slope}))(jnp.zeros(3))
        other = self.daemon(policy="local_sgd", policy__period="4")
        with self.assertRaisesRegex(psd.InvalidArgument, "local_sgd"):
            self.trainer(other, {"w": jnp.zeros(3)})

    def test_existing_values_of_the_daemon_are_reported(self):
        daemon = self.daemon(policy="locked")
        with self.trainer(daemon, {"w": jnp.zeros(3)}) as trainer:
            trainer.push({"w": jnp.ones(3)})
        with self.assertLogs("psd", "WARNING") as logs:
            self.trainer(daemon, {"w": jnp.ones(3)}).close()
        self.assertIn("the daemon has a model already, at version 1: its values replace those of the pytree", logs.output[0])
        with self.assertRaisesRegex(psd.InvalidArgument, "^lr is no argument here"):
            psd.jax.Trainer({"w": jnp.zeros(3)}, daemon.address, lr=0.1)

    def test_no_pull_writes_into_an_array_that_never_changes(self):
        model = psd.Model("flat", {"w": (16,)})
        with psd.Client(self.daemon().address) as client:
            client.join(model, np.ones(16, np.float32), 0, 1)
            values = jnp.zeros(16)
            with self.assertRaisesRegex(TypeError, "destination of a pull must be .*, which never changes"):
                client.pull(values)
            self.assertEqual(values.tolist(), [0] * 16)
            client.push(values)  # it is only read


if __name__ == "__main__":
    processes.main()
