"""A script's usual checkpoint, of a module and its optimizer, resumes at a daemon without a model: the numbers are those
of a run without interruption, and the restored state survives like an update."""

import functools
import io
import threading
import unittest

import etcd
import processes
import torch
from test_python_optimizer import bits, make_net, train
from torch import nn

import psd
import psd.torch

STEPS = 12
TOLERANCE = 1e-6
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, amsgrad=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, dampening=0.1),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True, momentum=0.5),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.5),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2, lr_decay=0.1, initial_accumulator_value=0.1),
}


def reloaded(saved):
    """As a checkpoint file holds it."""
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    return torch.load(file)


class PythonRestore(processes.ProcessTest):
    def open_daemon(self, name="d", **settings):
        settings = {"optimizer": None, "policy": "locked", "shards": 3, **settings}
        if "durability" in settings:
            settings["durability"] = {**settings["durability"], "path": str(self.folder / name)}
        return self.daemon(listen=(self.unix_address(f"{name}.sock"),), **settings)

    def of(self, optimizer, daemon, rank=0, world_size=1, **options):
        made = psd.torch.Optimizer(optimizer, daemon.address, rank=rank, world_size=world_size, retry_timeout=processes.WAIT_S, **options)
        self.addCleanup(made.client.close)
        return made

    def checkpoint(self, make=OPTIMIZERS["adamw"], steps=STEPS, **settings):
        """What a script saves after some steps at a daemon, which then ends."""
        daemon, model = self.open_daemon("before", **settings), make_net()
        optimizer = self.of(make(model.parameters()), daemon)
        train(model, optimizer, steps=steps)
        optimizer.state_dict = functools.partial(optimizer.state_dict, full=True)  # for a library that calls it
        saved = reloaded({"optimizer": optimizer.state_dict(), "model": model.state_dict()})
        optimizer.close()
        daemon.kill()
        return saved

    def resumed(self, saved, daemon, make=OPTIMIZERS["adamw"], **options):
        """A script that makes and joins everything before it loads."""
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = self.of(make(model.parameters()), daemon, **options)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return model, optimizer

    def assert_close(self, model, other, tolerance=TOLERANCE):
        for (key, mine), theirs in zip(model.named_parameters(), other.parameters()):
            self.assertLess(float((mine.detach() - theirs.detach()).abs().max()), tolerance, key)

    def assert_refused(self, words, call):
        with self.assertRaises(psd.Error) as raised:
            call()
        self.assertIn(words, str(raised.exception))
        self.assertNotIn("\n", str(raised.exception))

    def uninterrupted(self, make, steps=2 * STEPS):
        """The same steps with torch.optim."""
        model = make_net()
        optimizer = make(model.parameters())
        for seed in range(2, 2 + steps // STEPS):
            train(model, optimizer, steps=STEPS, seed=seed)
        return model, optimizer

    def test_every_optimizer_continues(self):
        for name, make in OPTIMIZERS.items():
            for ours in (True, False):  # saved by psd and by torch.optim
                with self.subTest(optimizer=name, saved="psd" if ours else "torch"):
                    if ours:
                        saved = self.checkpoint(make)
                    else:
                        model, optimizer = self.uninterrupted(make, STEPS)
                        saved = reloaded({"optimizer": optimizer.state_dict(), "model": model.state_dict()})
                    daemon = self.open_daemon(f"{name}{ours}")
                    model, optimizer = self.resumed(saved, daemon, make)
                    train(model, optimizer, steps=STEPS, seed=3)
                    expected, _ = self.uninterrupted(make)
                    self.assert_close(model, expected)
                    optimizer.close()
                    daemon.kill()

    def test_torch_loads_the_full_state(self):
        for name, make in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                saved = self.checkpoint(make)
                model = make_net()
                local = make(model.parameters())
                model.load_state_dict(saved["model"])
                local.load_state_dict(saved["optimizer"])
                train(model, local, steps=STEPS, seed=3)
                self.assert_close(model, self.uninterrupted(make)[0])

    def test_the_state_is_that_of_torch(self):
        make = OPTIMIZERS["amsgrad"]
        state, expected = self.checkpoint(make)["optimizer"]["state"], self.uninterrupted(make, STEPS)[1].state_dict()["state"]
        self.assertEqual([*state], [*expected])
        for number, mine in state.items():
            self.assertEqual({*mine}, {*expected[number]})
            for key, value in mine.items():
                self.assertTrue(torch.allclose(value, expected[number][key], atol=TOLERANCE), (number, key))

    def test_a_state_before_the_first_step(self):
        for name in ("adamw", "adagrad", "momentum"):
            with self.subTest(optimizer=name):
                make = OPTIMIZERS[name]
                saved = self.checkpoint(make, steps=0)
                model, optimizer = self.resumed(saved, self.open_daemon(name), make)
                train(model, optimizer, steps=STEPS)
                self.assert_close(model, self.uninterrupted(make, STEPS)[0])

    def test_an_optimizer_of_the_daemons_configuration(self):
        settings = {"optimizer": '{"type":"adam","lr":0.01}'}
        daemon, model = self.open_daemon("before", **settings), make_net()
        with psd.torch.Optimizer(model, daemon.address, rank=0, world_size=1) as optimizer:
            train(model, optimizer, steps=STEPS)
            saved = reloaded({"optimizer": optimizer.state_dict(full=True), "model": model.state_dict()})
        self.assertEqual(saved["optimizer"]["param_groups"][0]["lr"], 0.01)
        model = make_net()
        with psd.torch.Optimizer(model, self.open_daemon("after", **settings).address, rank=0, world_size=1) as optimizer:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            train(model, optimizer, steps=STEPS, seed=3)
            self.assert_close(model, self.uninterrupted(lambda parameters: torch.optim.Adam(parameters, lr=0.01))[0])

    def test_only_before_the_run_begins(self):
        saved = self.checkpoint()
        daemon = self.open_daemon()
        model = make_net()
        optimizer = self.of(OPTIMIZERS["adamw"](model.parameters()), daemon)
        light = {**saved["optimizer"], "state": {}, "psd": {"step": STEPS, "versions": [STEPS]}}
        self.assert_refused("save it with state_dict(full=True)", lambda: optimizer.load_state_dict(light))
        train(model, optimizer, steps=1)
        before = bits(model)
        self.assert_refused("the daemon's run has begun", lambda: optimizer.load_state_dict(saved["optimizer"]))
        train(model, optimizer, steps=1)
        self.assertFalse(torch.equal(bits(model), before))

    def test_the_module_is_loaded_first(self):
        saved = self.checkpoint()
        model = make_net()
        optimizer = self.of(OPTIMIZERS["adamw"](model.parameters()), self.open_daemon())
        optimizer.load_state_dict(saved["optimizer"])
        model.load_state_dict(saved["model"])
        self.assert_refused("before it loads a state_dict(full=True)", lambda: train(model, optimizer, steps=1))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # no update has been made since
        train(model, optimizer, steps=STEPS, seed=3)
        self.assert_close(model, self.uninterrupted(OPTIMIZERS["adamw"])[0])

    def test_what_a_state_must_have(self):
        saved = self.checkpoint()
        daemon = self.open_daemon()
        model = make_net()
        optimizer = self.of(OPTIMIZERS["adamw"](model.parameters()), daemon)

        def refused(words, change):
            broken = reloaded(saved)["optimizer"]
            change(broken["state"], broken)
            self.assert_refused(words, lambda: optimizer.load_state_dict(broken))

        def uneven(state, whole):
            state[5]["step"] = torch.tensor(3.0)
            del whole["psd"]

        refused("'3.bias' 3", uneven)
        refused("the state of parameter '0.bias' has no 'exp_avg_sq'", lambda state, _: state[1].pop("exp_avg_sq"))
        refused("the state of parameter '0.weight' has no 'step'", lambda state, _: state[0].pop("step"))
        refused("there is no state of parameter '0.bias'", lambda state, _: state.pop(1))
        refused("there is no state of parameter '0.weight'", lambda state, _: state.clear())
        refused("maximize has changed to True", lambda _, whole: [group.update(maximize=True) for group in whole["param_groups"]])
        refused("decoupled_weight_decay has changed to False",
                lambda _, whole: [group.update(decoupled_weight_decay=False) for group in whole["param_groups"]])
        refused("state 'step' of parameter '0.weight' is -1.0", lambda state, _: state[0].update(step=-1))
        refused("state 'exp_avg' of parameter '0.bias' is of shape (3,)", lambda state, _: state[1].update(exp_avg=torch.zeros(3)))
        refused("has 'max_exp_avg_sq', and the daemon's optimizer has exp_avg, exp_avg_sq",
                lambda state, _: [each.update(max_exp_avg_sq=each["exp_avg_sq"]) for each in state.values()])
        refused("state exp_avg: 1.weight holds nan at element 2", lambda state, _: state[2]["exp_avg"].__setitem__(2, float("nan")))
        refused("state exp_avg_sq: 1.bias, elements 1 to 1 of 16 holds -1, and the optimizer takes its square root",
                lambda state, _: state[3]["exp_avg_sq"].__setitem__(1, -1))
        refused("steps", lambda state, _: [each.update(step=torch.tensor(1e17)) for each in state.values()])
        train(model, optimizer, steps=STEPS)
        self.assert_close(model, self.uninterrupted(OPTIMIZERS["adamw"], STEPS)[0])

    def test_trainers_together(self):
        saved = self.checkpoint()
        for policy in ("sync", "locked"):
            with self.subTest(policy=policy):
                together = {"policy__start_trainers": 2} if policy == "sync" else {}  # else rank 0 may make rounds before rank 1 joins
                daemon = self.open_daemon(policy, policy=policy, world_size=2, **together)
                results, failed = {}, []

                def work(rank, daemon=daemon, results=results, failed=failed):
                    try:
                        torch.manual_seed(rank)
                        model = make_net()
                        optimizer = self.of(OPTIMIZERS["adamw"](model.parameters()), daemon, rank=rank, world_size=2)
                        model.load_state_dict(saved["model"])
                        optimizer.load_state_dict(saved["optimizer"])
                        results[rank] = bits(model)
                        train(model, optimizer, steps=STEPS, seed=3)
                        results[rank, "trained"] = model
                        optimizer.close()
                    except BaseException as error:
                        failed.append(error)
                        raise

                threads = [threading.Thread(target=work, args=(rank,)) for rank in (1, 0)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(failed, [])
                if policy != "locked":  # otherwise rank 1 may find updates of rank 0
                    loaded = make_net()
                    loaded.load_state_dict(saved["model"])
                    for rank in (0, 1):
                        self.assertTrue(torch.equal(results[rank], bits(loaded)))
                    self.assert_close(results[0, "trained"], self.uninterrupted(OPTIMIZERS["adamw"])[0])
                daemon.kill()

    def test_a_gradient_of_earlier_values_is_dropped(self):
        saved = self.checkpoint()
        for policy in ("hogwild", "locked"):
            with self.subTest(policy=policy):
                daemon = self.open_daemon("two" + policy, policy=policy, world_size=2)
                other = make_net()
                theirs = self.of(OPTIMIZERS["adamw"](other.parameters()), daemon, rank=1, world_size=2)
                model, optimizer = self.resumed(saved, daemon, world_size=2)
                train(other, theirs, steps=1)
                self.assertEqual(theirs.last_push.outcome, "stale")
                train(model, optimizer, steps=STEPS, seed=3)
                self.assert_close(model, self.uninterrupted(OPTIMIZERS["adamw"])[0])
                theirs.close()
                optimizer.close()

    def test_a_trainer_that_has_pushed_prevents_it(self):
        saved = self.checkpoint()
        daemon = self.open_daemon(policy="sync", world_size=2)
        model, other = make_net(), make_net()
        first = self.of(OPTIMIZERS["adamw"](model.parameters()), daemon, rank=0, world_size=2)
        theirs = self.of(OPTIMIZERS["adamw"](other.parameters()), daemon, rank=1, world_size=2)
        waits = threading.Thread(target=lambda: train(other, theirs, steps=1))
        waits.start()
        daemon.until_status("rank 1 waits", lambda status: status["waiting"])
        self.assert_refused("another trainer has pushed", lambda: first.load_state_dict(saved["optimizer"]))
        train(model, first, steps=1)
        waits.join()
        self.assertTrue(torch.equal(bits(model), bits(other)))

    def test_several_daemons(self):
        saved = self.checkpoint()
        addresses = [self.unix_address(f"part{i}.sock") for i in range(3)]
        daemons = [self.daemon(listen=(addresses[i],), daemons=addresses, index=i, policy="locked", optimizer=None, shards=2) for i in range(3)]
        model, optimizer = self.resumed(saved, daemons[0])
        train(model, optimizer, steps=STEPS, seed=3)
        expected, local = self.uninterrupted(OPTIMIZERS["adamw"])
        self.assert_close(model, expected)
        state = optimizer.state_dict(full=True)["state"]
        for number, theirs in local.state_dict()["state"].items():
            for key, value in theirs.items():
                self.assertTrue(torch.allclose(state[number][key], value, atol=TOLERANCE), (number, key))

    def test_a_restored_state_survives_the_daemon(self):
        for kind in ("log", "checkpoint"):
            with self.subTest(durability=kind):
                saved = self.checkpoint()
                settings = {"durability": {"type": kind, "every_seconds": 0}}
                daemon = self.open_daemon(kind, **settings)
                model, optimizer = self.resumed(saved, daemon)
                daemon.kill()
                self.open_daemon(kind, **settings)
                train(model, optimizer, steps=STEPS, seed=3)
                self.assert_close(model, self.uninterrupted(OPTIMIZERS["adamw"])[0])
                optimizer.close()

    def test_updates_after_a_restore_survive_in_the_log(self):
        saved = self.checkpoint()
        settings = {"durability": {"type": "log", "every_seconds": 0}}
        daemon = self.open_daemon(**settings)
        model, optimizer = self.resumed(saved, daemon)
        for x in range(2):
            train(model, optimizer, steps=STEPS // 2, seed=3 + x)
            daemon.kill()
            daemon = self.open_daemon(**settings)
        expected = make_net()
        local = OPTIMIZERS["adamw"](expected.parameters())
        for steps, seed in ((STEPS, 2), (STEPS // 2, 3), (STEPS // 2, 4)):
            train(expected, local, steps=steps, seed=seed)
        model.zero_grad()
        optimizer.state_dict(full=True)
        self.assert_close(model, expected)

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_a_standby_has_the_restored_state(self):
        saved = self.checkpoint()
        cluster = etcd.Etcd(self)
        addresses = [self.unix_address(f"{place}.sock") for place in "ab"]
        primary, standby = (self.open_daemon(place, engine={"endpoints": cluster.endpoints, "prefix": "/psd/test"},
                                             replication={"silence_ms": 1000, "alone_ms": 20_000}) for place in "ab")
        torch.manual_seed(7)
        model = make_net()
        optimizer = psd.torch.Optimizer(OPTIMIZERS["adamw"](model.parameters()), ",".join(addresses), rank=0, world_size=1,
                                        retry_timeout=processes.WAIT_S)
        self.addCleanup(optimizer.client.close)
        first = primary if primary.status()["replica_set"]["role"] == "primary" else standby
        first.until_in_sync()
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first.until_in_sync()
        first.kill()
        train(model, optimizer, steps=STEPS, seed=3)
        self.assert_close(model, self.uninterrupted(OPTIMIZERS["adamw"])[0])

    def test_a_model_with_tables(self):
        daemon = self.open_daemon()
        model = nn.ModuleDict({"rows": psd.torch.Embedding("user", 4), "fc": nn.Linear(4, 1)})
        optimizer = self.of(torch.optim.Adagrad(model.parameters(), lr=0.1), daemon)
        state = optimizer.state_dict(full=True)
        self.assertEqual(len(state["state"]), 2)
        self.assert_refused("embedding tables", lambda: optimizer.load_state_dict(state))


if __name__ == "__main__":
    processes.main()
