"""psd.torch.DiLoCo: a local optimizer's steps, and one exchange after each `sync_every` of them."""

import signal
import threading
from unittest import mock

import diloco_learners
import processes
import torch
from diloco_learners import OUTER, PERIOD, batches, make_model, step
from torch import nn

import psd
import psd.torch


def by_hand(rounds, make_inner):
    """DiLoCo of one learner with PyTorch's optimizers."""
    model, outer = make_model(), make_model()
    inner_steps = make_inner(model.parameters())
    outer_steps = torch.optim.SGD(outer.parameters(), 0.7, 0.9, nesterov=True)
    for number, (x, y) in enumerate(batches(rounds * PERIOD), 1):
        step(model, inner_steps, x, y)
        if number % PERIOD == 0:
            for theirs, mine in zip(outer.parameters(), model.parameters()):
                theirs.grad = theirs.detach() - mine.detach()
            outer_steps.step()
            model.load_state_dict(outer.state_dict())
    return model


class PythonDiLoCo(diloco_learners.LearnerTest):
    def test_one_learner_is_both_optimizers_by_hand(self):
        for make_inner in (lambda parameters: torch.optim.AdamW(parameters, 0.01),
                           lambda parameters: torch.optim.SGD(parameters, 0.05, 0.9)):
            daemon, model, rounds = self.diloco(), make_model(), 6
            inner = make_inner(model.parameters())
            with self.learner(daemon, model, inner, rank=0, world_size=1, sync_every=PERIOD) as learner:
                for x, y in batches(rounds * PERIOD):
                    step(model, inner, x, y)
                self.assertEqual(learner.rounds, rounds)
                self.assertEqual(learner.progress, rounds * PERIOD)
                self.assertEqual(learner.last_push.outcome, "applied")
            for mine, expected in zip(model.parameters(), by_hand(rounds, make_inner).parameters()):
                torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)

    def test_asynchronous_learners_are_delayed_nesterov_by_hand(self):
        delay, exchanges = 3, 40
        outer = f'{{"type":"delayed_nesterov","lr":0.7,"momentum":0.9,"delay":{delay}}}'
        daemon = self.daemon(policy="async_diloco", optimizer=outer, policy__period=PERIOD, shards=2)
        # The third one is four times slower: its pushes are stale. No learner waits, so one thread drives all.
        turns = [turn for exchange in range(exchanges) for turn in ((0, 1, 2) if exchange % 4 == 3 else (0, 1))]
        data = {rank: batches(PERIOD * exchanges, seed=10 + rank) for rank in range(3)}
        models = [make_model() for _ in range(3)]
        inners = [torch.optim.AdamW(model.parameters(), 0.005) for model in models]
        learners = [self.learner(daemon, model, inner, rank=rank, world_size=3)
                    for rank, (model, inner) in enumerate(zip(models, inners))]
        for rank in turns:
            for _ in range(PERIOD):
                step(models[rank], inners[rank], *next(data[rank]))
            self.assertEqual(learners[rank].last_push.outcome, "applied")
        self.assertEqual(learners[turns[-1]].rounds, len(turns) // delay)
        self.assertEqual(learners[turns[-1]].progress, len(turns) * PERIOD // delay)
        # The same by hand.
        data = {rank: batches(PERIOD * exchanges, seed=10 + rank) for rank in range(3)}
        own = [make_model() for _ in range(3)]
        inners = [torch.optim.AdamW(model.parameters(), 0.005) for model in own]
        centre = [parameter.detach().clone() for parameter in make_model().parameters()]
        starts = [[parameter.clone() for parameter in centre] for _ in range(3)]
        momentum, sums = ([torch.zeros_like(parameter) for parameter in centre] for _ in range(2))
        for number, rank in enumerate(turns, 1):
            for _ in range(PERIOD):
                step(own[rank], inners[rank], *next(data[rank]))
            with torch.no_grad():
                for i, parameter in enumerate(own[rank].parameters()):
                    difference = starts[rank][i] - parameter
                    sums[i] += difference
                    centre[i] -= 0.7 * difference / delay
                    if number % delay == 0:
                        momentum[i] = 0.9 * momentum[i] + sums[i] / delay
                        centre[i] -= 0.7 * 0.9 * momentum[i]
                        sums[i].zero_()
                    parameter.copy_(centre[i])
            starts[rank] = [parameter.clone() for parameter in centre]
        for mine, expected in zip(models[turns[-1]].parameters(), own[turns[-1]].parameters()):
            torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)
        x, y = next(batches(1, seed=99))
        losses = [nn.functional.mse_loss(model(x), y).item() for model in (models[turns[-1]], own[turns[-1]], make_model())]
        self.assertLess(abs(losses[0] - losses[1]), 0.03)
        self.assertLess(losses[0], 0.5 * losses[2], "it learns")
        for learner in learners:
            learner.close()

    def test_what_is_left_is_exchanged_at_the_end(self):
        daemon, model = self.diloco(optimizer='{"type":"sgd","lr":1}'), make_model()
        inner = torch.optim.SGD(model.parameters(), 0.05)
        with self.learner(daemon, model, inner, rank=0, world_size=1):
            for x, y in batches(PERIOD + 2):
                step(model, inner, x, y)
        local = make_model()
        steps = torch.optim.SGD(local.parameters(), 0.05)
        for x, y in batches(PERIOD + 2):
            step(local, steps, x, y)
        for mine, expected in zip(model.parameters(), local.parameters()):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
        self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {2})
        step(model, inner, x, y)  # the hooks are removed with the connection

    def test_learners_of_a_round_continue_from_the_same_parameters(self):
        self.continue_from_the_same_parameters()

    def test_learners_that_pull_differences_do_too(self):
        daemon = self.continue_from_the_same_parameters(deltas="int8")
        # Each learner pulls the model once, and then a byte of each value.
        counters = daemon.status()["counters"]
        self.assertLess(counters["pull_bytes"], 0.5 * counters["pull_value_bytes"])

    def test_learners_in_fragments_do_too(self):
        self.continue_from_the_same_parameters(fragments=2, delay=1)

    def test_learners_in_fragments_at_two_daemons_do_too(self):
        for bits in ("none", "int8"):
            daemons = self.two(bits, start_trainers=2, fragments=2, delay=1, deltas=bits)
            self.continue_from_the_same_parameters(daemons[0], fragments=2)
            # Fragment 0 is on both, fragment 1 on the second only.
            self.assertEqual([[each["group"] for each in daemon.status()["rounds"]] for daemon in daemons],
                             [["fragment 0"], ["fragment 0", "fragment 1"]])

    def test_one_learner_has_the_same_bits_at_two_daemons(self):
        for number, options in enumerate(({"fragments": 2}, {"fragments": 2, "delay": 1, "blend": 0.5}, {"delay": 2, "blend": 0.5})):
            made = []
            for daemon in (self.diloco(**options), self.two(str(number), **options)[1]):
                model = make_model()
                inner = torch.optim.AdamW(model.parameters(), 0.01)
                with self.learner(daemon, model, inner, rank=0, world_size=1):
                    for x, y in batches(6 * PERIOD + 2):
                        step(model, inner, x, y)
                made.append([parameter.detach() for parameter in model.parameters()])
            for one, two in zip(*made):
                torch.testing.assert_close(one, two, rtol=0, atol=0)

    def test_reports_are_numbered_by_inner_steps(self):
        for options in ({}, {"fragments": 2, "delay": 1}):
            daemon, model = self.diloco(**options), make_model()
            inner = torch.optim.AdamW(model.parameters(), 0.01)
            with mock.patch("psd._pace._REPORT_INTERVAL_S", 0), self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
                for count, (x, y) in enumerate(batches(2), 1):  # before a push of the whole
                    step(model, inner, x, y)
                    self.assertEqual((learner.progress, learner.client.step), (count, 0))
                    daemon.until_status(f"the report of step {count}",
                                        lambda status, count=count: status["trainers"][0]["reported_step"] == count)

    def test_a_loss_arrives_beside_the_pace_of_each_step(self):
        daemon, model = self.diloco(), make_model()
        inner = torch.optim.AdamW(model.parameters(), 0.01)
        with mock.patch("psd._pace._REPORT_INTERVAL_S", 0), self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
            for x, y in batches(3 * PERIOD):
                loss = step(model, inner, x, y)
                learner.client.report({"loss": loss}, step=learner.progress)

                def told(status, loss=loss, count=learner.progress):
                    trainer, = status["trainers"]
                    values = {each["name"]: each["value"] for each in trainer["reports"]}
                    return trainer["reported_step"] == count and values.get("loss") == loss and "samples_per_second" in values

                daemon.until_status(f"the loss of step {learner.progress}", told)

    def test_one_learner_in_fragments_is_streaming_diloco_by_hand(self):
        delay, blend, steps = 1, 0.5, 6 * PERIOD + 2
        daemon, model = self.diloco(fragments=2, delay=delay, blend=blend), make_model()
        inner = torch.optim.AdamW(model.parameters(), 0.01)
        with self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
            for x, y in batches(steps):
                step(model, inner, x, y)
            self.assertEqual(learner.progress, steps)
            self.assertEqual(learner.rounds, 6)
            self.assertEqual(learner.last_push.outcome, "applied")
            self.assertEqual(learner.late, 0)
        places = learner.model.places
        fragments = [set(), set()]
        for shard in daemon.status()["shards"]:
            fragments[int(shard["group"].removeprefix("fragment "))] |= {
                name for name, place in places.items() if shard["begin"] <= place.start < shard["begin"] + shard["elements"]}
        self.assertTrue(all(fragments))
        self.assertEqual(sum(map(len, fragments)), 4)
        self.assert_is_streaming_diloco_by_hand(model, steps, fragments, ((0.7, 0.9), (0.7, 0.9)), delay, blend)

    def assert_is_streaming_diloco_by_hand(self, model, steps, fragments, outer, delay, blend):
        """`model` equals the result of one learner with AdamW after that many steps of batches(), with two fragments
        (sets of names), whose outer steps are SGD with (rate, Nesterov momentum)."""
        own, theta = make_model(), dict(make_model().named_parameters())
        inner = torch.optim.AdamW(own.parameters(), 0.01)
        momentum = {name: torch.zeros_like(value) for name, value in theta.items()}
        sent, fresh, slot = [0, 0], [0, 0], 0

        def send(fragment):
            rate, share = outer[fragment]
            for name in fragments[fragment]:
                difference = theta[name] - dict(own.named_parameters())[name]
                momentum[name] = share * momentum[name] + difference
                theta[name] = theta[name] - rate * (difference + share * momentum[name])
            sent[fragment], fresh[fragment] = number, 0

        def apply_result(fragment):
            for name in fragments[fragment]:
                parameter = dict(own.named_parameters())[name]
                parameter.copy_(blend * parameter + (1 - blend) * theta[name])
            sent[fragment] = 0

        for number, (x, y) in enumerate(batches(steps), 1):
            step(own, inner, x, y)
            with torch.no_grad():
                for fragment in range(2):
                    fresh[fragment] += 1
                    if sent[fragment] and number - sent[fragment] == delay:
                        apply_result(fragment)
                if number == slot // 2 * PERIOD + (slot % 2 + 1) * PERIOD // 2:
                    send(slot % 2)
                    if delay == 0:
                        apply_result(slot % 2)
                    slot += 1
        with torch.no_grad():
            for fragment in range(2):  # the rest
                if sent[fragment]:
                    apply_result(fragment)
            for fragment in range(2):
                if fresh[fragment]:
                    send(fragment)
                    apply_result(fragment)
        for mine, expected in zip(model.parameters(), own.parameters()):
            torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)

    def test_groups_are_fragments_with_outer_steps_of_their_own(self):
        groups = [{"match": ["2.*", "0.bias"], "optimizer": {"type": "sgd", "lr": 0.9, "momentum": 0.5, "nesterov": True},
                   "policy": {"type": "diloco", "aggregator": "median", "quorum": 1, "grace_ms": 60_000}}]
        fragments = ({"2.weight", "2.bias", "0.bias"}, {"0.weight"})
        for delay, blend in ((0, 0), (1, 0.5)):
            with self.subTest(delay=delay):
                steps, daemon, model = 6 * PERIOD + 2, self.diloco(groups=groups, delay=delay, blend=blend), make_model()
                inner = torch.optim.AdamW(model.parameters(), 0.01)
                with self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
                    for x, y in batches(steps):
                        step(model, inner, x, y)
                    self.assertEqual((learner.progress, learner.rounds, learner.late), (steps, 6, 0))
                rounds = daemon.status()["rounds"]
                self.assertEqual([each["group"] for each in rounds], ["2.* 0.bias", "others"])
                self.assertEqual([each["grace_seconds"] is None for each in rounds], [False, True])
                self.assert_is_streaming_diloco_by_hand(model, steps, fragments, ((0.9, 0.5), (0.7, 0.9)), delay, blend)

    def test_groups_of_two_daemons_have_the_bits_of_one(self):
        groups = [{"match": "0.*", "optimizer": {"type": "sgd", "lr": 0.9},
                   "policy": {"type": "diloco", "quorum": 1, "grace_ms": 60_000, "round_timeout_ms": 600_000}}]
        made = []
        for daemon in (self.diloco(groups=groups, delay=1), self.two(groups=groups, delay=1)[0]):
            model = make_model()
            inner = torch.optim.AdamW(model.parameters(), 0.01)
            with self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
                for x, y in batches(6 * PERIOD + 2):
                    step(model, inner, x, y)
                self.assertEqual(learner.late, 0)
            made.append([parameter.detach() for parameter in model.parameters()])
        for one, two in zip(*made):
            torch.testing.assert_close(one, two, rtol=0, atol=0)

    def test_groups_that_leave_nothing_to_the_top_level_are_refused(self):
        groups, words = [{"match": "0.*"}, {"match": "2.*"}], "leave no tensor of .*to the top level, which is a fragment too"
        for daemon in (self.diloco(groups=groups), self.two(groups=groups)[0]):
            model = make_model()
            with self.assertRaisesRegex(psd.InvalidArgument, words):
                psd.torch.DiLoCo(model, torch.optim.AdamW(model.parameters()), daemon.address, rank=0, world_size=1)

    def test_a_learner_continues_with_the_next_daemon(self):
        outer = {"diloco": OUTER, "async_diloco": '{"type":"delayed_nesterov","lr":0.7,"momentum":0.9,"delay":1}'}
        for policy, optimizer in outer.items():
            with self.subTest(policy):
                address, folder = self.unix_address(f"{policy}.sock"), self.folder / policy

                def begin():
                    return self.daemon(listen=(address,), policy=policy, optimizer=optimizer, policy__period=PERIOD,
                                       durability={"type": "log", "path": str(folder)})

                daemon, model, rounds = begin(), make_model(), 10
                inner = torch.optim.AdamW(model.parameters(), 0.01)
                with self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
                    for number, (x, y) in enumerate(batches(rounds * PERIOD), 1):
                        step(model, inner, x, y)
                        if number % 17 == 0:  # in the middle of a period, and before the first push to the next daemon
                            daemon.kill()
                            daemon = begin()
                    self.assertEqual((learner.progress, learner.late), (rounds * PERIOD, 0))
                # No exchange is lost, and none counts twice.
                self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {rounds})
                for mine, expected in zip(model.parameters(), by_hand(rounds, lambda parameters: torch.optim.AdamW(parameters, 0.01)).parameters()):
                    torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)

    def test_a_learner_in_fragments_continues_with_the_next_daemon(self):
        folder, address = self.folder / "saved", self.unix_address()
        keeps = {"listen": (address,), "durability": {"type": "log", "path": str(folder)}}
        daemon, model = self.diloco(fragments=2, delay=1, **keeps), make_model()
        inner = torch.optim.AdamW(model.parameters(), 0.01)
        losses = []
        with self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
            for number, (x, y) in enumerate(batches(10 * PERIOD), 1):
                losses.append(step(model, inner, x, y))
                if number % 17 == 0:
                    daemon.kill()
                    daemon = self.diloco(fragments=2, delay=1, **keeps)
            self.assertEqual(learner.progress, 10 * PERIOD)
        self.assertLess(sum(losses[-5:]), 0.5 * sum(losses[:5]))
        # A round of each fragment in each period, and the rest of the one that was not just pushed.
        self.assertEqual(sorted({shard["version"] for shard in daemon.status()["shards"]}), [10, 11])

    def test_a_learner_in_fragments_continues_with_the_next_of_two_daemons(self):
        options = {"fragments": 2, "delay": 1}
        daemons, model = self.two(**options), make_model()
        inner = torch.optim.AdamW(model.parameters(), 0.01)
        losses = []
        with self.learner(daemons[0], model, inner, rank=0, world_size=1) as learner:
            for number, (x, y) in enumerate(batches(10 * PERIOD), 1):
                losses.append(step(model, inner, x, y))
                if number % 13 == 0:
                    index = number // 13 % 2
                    daemons[index].kill()
                    daemons[index], = self.two(only=(index,), **options)
            self.assertEqual(learner.progress, 10 * PERIOD)
            self.assertEqual(learner.late, 0)
        self.assertLess(sum(losses[-5:]), 0.5 * sum(losses[:5]))
        for daemon in daemons:
            self.assertLessEqual({shard["version"] for shard in daemon.status()["shards"]}, {10, 11})

    def continue_from_the_same_parameters(self, daemon=None, **options):
        daemon, learners, rounds = daemon or self.diloco(start_trainers=2, **options), 2, 8
        models, losses, failures = [make_model() for _ in range(learners)], [[] for _ in range(learners)], []

        def run(rank):
            try:
                inner = torch.optim.AdamW(models[rank].parameters(), 0.01)
                with self.learner(daemon, models[rank], inner, rank=rank, world_size=learners, samples=32):
                    for x, y in batches(rounds * PERIOD, seed=rank):
                        losses[rank].append(step(models[rank], inner, x, y))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(learners)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(processes.WAIT_S)
        self.assertEqual(failures, [])
        for one, other in zip(models[0].parameters(), models[1].parameters()):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        for mine in losses:
            self.assertLess(sum(mine[-5:]), (0.75 if "fragments" in options else 0.5) * sum(mine[:5]))
        if "fragments" not in options:
            self.assertEqual(daemon.status()["counters"]["gradients"], learners * rounds)
        return daemon

    def test_the_rate_follows_the_run(self):
        daemon = self.diloco(optimizer='{"type":"sgd","lr":1}')
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        with self.learner(daemon, model, inner, rank=0, world_size=2):
            for x, y in batches(3 * PERIOD):
                step(model, inner, x, y)
        late_model, seen = make_model(), []
        late = torch.optim.SGD(late_model.parameters(), 0.1)

        def half_life(progress):
            seen.append(progress)
            return 0.5 ** progress

        with self.learner(daemon, late_model, late, rank=1, world_size=2, lr_lambda=half_life):
            for x, y in batches(2):
                step(late_model, late, x, y)
        self.assertEqual(seen, [3 * PERIOD, 3 * PERIOD + 1])
        self.assertEqual(late.param_groups[0]["lr"], 0.1 * 0.5 ** (3 * PERIOD + 1))

    def test_a_missing_learner_is_notified_before_the_round_closes(self):
        daemon = self.diloco(quorum=1, grace_ms=60_000, start_trainers=2)
        models = [make_model(), make_model()]
        inners = [torch.optim.SGD(model.parameters(), 0.01) for model in models]
        quick, slow = (self.learner(daemon, models[rank], inners[rank], rank=rank, world_size=2) for rank in range(2))
        done = threading.Event()

        def run():
            for x, y in batches(PERIOD):
                step(models[0], inners[0], x, y)
            done.set()

        threading.Thread(target=run, daemon=True).start()
        daemon.until_status("the quick one is there", lambda status: status["rounds"][0]["contributed"] == [0])
        (x, y), = batches(1)
        steps = 0
        while slow.last_push is None and steps < PERIOD:
            processes.until("the slow one is notified", lambda: slow._exchanges.due)
            step(models[1], inners[1], x, y)
            steps += 1
        self.assertEqual(steps, 1)
        self.assertEqual(slow.last_push.outcome, "applied")
        self.assertTrue(done.wait(processes.WAIT_S))
        self.assertEqual(daemon.status()["rounds"][0]["in"], [0, 1])
        quick.close()
        slow.close()

    def test_it_tells_how_many_samples_and_tokens_a_second_it_takes(self):
        for options in ({}, {"fragments": 2, "delay": 1}):
            with self.subTest(options):
                daemon, model = self.diloco(**options), make_model()
                inner = torch.optim.SGD(model.parameters(), 0.01)

                def train_until_reported(learner, name):
                    def reported():
                        step(model, inner, *next(data))
                        trainer, = daemon.status()["trainers"]
                        return {each["name"]: each["value"] for each in trainer["reports"]} if any(
                            each["name"] == name for each in trainer["reports"]) else None

                    return processes.until(f"{name} is reported", reported)

                data = batches(1_000_000)
                with self.learner(daemon, model, inner, rank=0, world_size=1, samples=32) as learner:
                    learner.client.report({"loss": 0.25})  # a program's own report is kept
                    told = train_until_reported(learner, "samples_per_second")
                    self.assertGreater(told["samples_per_second"], 0)
                    self.assertEqual(told["loss"], 0.25)
                    self.assertNotIn("tokens_per_second", told)
                with self.learner(daemon, model, inner, rank=0, world_size=1, samples=32, tokens=32 * 128) as learner:
                    told = train_until_reported(learner, "tokens_per_second")
                    self.assertAlmostEqual(told["tokens_per_second"] / told["samples_per_second"], 128, places=6)
                    table = self.start_psd("status", "--server", daemon.address)
                    self.assert_ends(table)
                    self.assertRegex(table.out, r"trainers +1 of 1 joined, 0 lost; [0-9.e+]+ tokens/s\n")

    def test_an_exchange_that_a_signal_ended_is_continued(self):
        class Stopped(Exception):
            pass

        seen = []

        def handler(_, frame):
            waits = frame.f_code is psd.torch.DiLoCo._exchange.__code__ and any(each["step"] == 1 for each in daemon.status()["trainers"])
            if waits:
                signal.setitimer(signal.ITIMER_REAL, 0)
                seen.append((learners[0].rounds, learners[0].progress, learners[0].late, learners[0].last_push))
                with self.assertRaisesRegex(psd.InvalidArgument, "an exchange is in progress"):
                    learners[0].sync()
                raise Stopped

        daemon = self.diloco()
        models = [make_model() for _ in range(2)]
        inners = [torch.optim.SGD(model.parameters(), 0.05) for model in models]
        learners = [self.learner(daemon, model, inner, rank=rank, world_size=2)
                    for rank, (model, inner) in enumerate(zip(models, inners))]
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handler))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        try:
            with self.assertRaises(Stopped):
                for x, y in batches(PERIOD):
                    step(models[0], inners[0], x, y)  # the round waits for the other
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertEqual(seen, [(0, PERIOD, 0, None)])
        for x, y in batches(PERIOD, seed=3):
            step(models[1], inners[1], x, y)
        learners[0].sync()
        self.assertEqual([learner.rounds for learner in learners], [1, 1])
        self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {1})
        for first, second in zip(*(model.parameters() for model in models)):
            torch.testing.assert_close(first, second, rtol=0, atol=0)
        for learner in learners:
            learner.close()
        self.assertEqual({shard["version"] for shard in daemon.status()["shards"]}, {1})

    def test_wrong_arguments_are_refused_by_a_line(self):
        model, other = make_model(), make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        for words, arguments, options in (
                ("model is a int; expected a torch.nn.Module", (3, inner), {}),
                ("inner_optimizer is a NoneType; expected a torch.optim.Optimizer", (model, None), {}),
                ("lr_lambda is a str", (model, inner), {"lr_lambda": "cosine"}),
                ("none of the model's parameters", (other, inner), {}),
                ("lr is no argument here", (model, inner), {"lr": 0.1}),
                ("psd.Client has no option 'retry_timout'; did you mean 'retry_timeout'?", (model, inner), {"retry_timout": 1}),
                ("samples is -3; expected a whole number", (model, inner), {"samples": -3}),
                ("samples is 1.5; expected a whole number", (model, inner), {"samples": 1.5}),
                ("tokens is 'many'; expected a whole number", (model, inner), {"tokens": "many"})):
            with self.subTest(words), self.assertRaises((psd.InvalidArgument, TypeError)) as refused:
                psd.torch.DiLoCo(*arguments, "tcp://127.0.0.1:1", **options)
            self.assertIn(words, str(refused.exception))
        daemon = self.diloco(start_trainers=1)
        learner = self.learner(daemon, model, inner, rank=0, world_size=1)
        with self.assertRaises(psd.InvalidArgument):
            learner.samples = 1 << 70
        self.assertEqual(learner.samples, 1)
        learner.close()

    def test_a_closed_learner_tells_how_it_went_and_leaves_the_optimizer_alone(self):
        for options in ({}, {"fragments": 2}):
            with self.subTest(options):
                daemon, model = self.diloco(**options), make_model()
                inner = torch.optim.SGD(model.parameters(), 0.01)
                with self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
                    for x, y in batches(2 * PERIOD):
                        step(model, inner, x, y)
                    learner.close()  # in the block, at whose end it is closed again
                progress = learner.progress
                self.assertGreaterEqual(progress, 2 * PERIOD)
                for _ in range(2):
                    self.assertEqual((learner.rounds, learner.progress, learner.late), (2, progress, 0))
                    self.assertEqual(learner.last_push.outcome, "applied")
                    for x, y in batches(PERIOD):
                        step(model, inner, x, y)
                    learner.sync()
                    learner.close()

    def test_after_an_exception_the_optimizer_goes_with_another_learner(self):
        for options in ({}, {"fragments": 2}):
            with self.subTest(options):
                daemon, model = self.diloco(**options), make_model()
                inner = torch.optim.SGD(model.parameters(), 0.01)
                with self.assertRaises(KeyError), self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
                    for x, y in batches(PERIOD + 1):
                        step(model, inner, x, y)
                    raise KeyError
                self.assertEqual((learner.rounds, learner.late), (1, 0))
                for x, y in batches(2 * PERIOD):
                    step(model, inner, x, y)  # its own
                with self.learner(daemon, model, inner, rank=0, world_size=1) as learner:
                    for x, y in batches(PERIOD):
                        step(model, inner, x, y)
                self.assertEqual(learner.rounds, 2)


if __name__ == "__main__":
    processes.main()
