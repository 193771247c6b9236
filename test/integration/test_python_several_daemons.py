"""Several daemons serve one model: the parameters are, bit by bit, those of one daemon."""

import functools
import threading

import numpy as np
import processes

import psd

# Cut within tensors, between them, and with tensors that no cut divides.
MODEL = psd.Model("several", {"embed": (301, 7), "scale": (), "fc1.weight": (64, 33), "fc1.bias": (64,), "fc2.weight": (10, 64), "fc2.bias": (10,)})
COUNTING = {"policy": "locked", "optimizer": '{"type":"sgd","lr":1.0}'}
# Groups with rules of their own: a cut tensor, tensors of one daemon, and the rest.
GROUPS = {"policy": "locked", "optimizer": '{"type":"sgd","lr":0.1,"momentum":0.9}', "groups": [
    {"match": ["embed"], "policy": {"type": "sync", "round_timeout_ms": 600_000}, "optimizer": {"type": "adam", "lr": 0.01}},
    {"match": ["fc2*", "scale"], "policy": {"type": "hogwild"}, "optimizer": {"type": "adagrad", "lr": 0.1}}]}
TABLES = psd.Model("rows", {"w": (40, 3)}, [psd.Table("user", 3, "uniform", 0.1, 7), psd.Table("item", 2, "zero")])


class PythonSeveralDaemons(processes.ProcessTest):
    def several(self, count, name="a", **settings):
        """Daemons that serve a model together, each at a Unix socket; one alone for a count of 1."""
        self.addresses = [self.unix_address(f"{name}{i}.sock") for i in range(count)]
        return [self.one(i, **settings) for i in range(count)]

    def one(self, index, **settings):
        """One of several(), possibly replacing a dead one."""
        return self.daemon(listen=(self.addresses[index],), daemons=self.addresses, index=index, **settings)

    def joined(self, daemons, model=MODEL, rank=0, world_size=1, values=None, **options):
        client = psd.Client(daemons[-1].address, **options)  # any of them: it sends the others' addresses
        self.addCleanup(client.close)
        client.join(model, model.zeros() if values is None else values, rank, world_size)
        return client

    def steps(self, daemons, steps=12, rows=False, random=None, before=lambda step: None, **options):
        """The model that one trainer makes, with gradients computed from the parameters. `random`: the generator of the
        trainer that this one continues."""
        model = TABLES if rows else MODEL
        random = random or np.random.default_rng(3)
        values = model.flatten({name: random.standard_normal(shape, dtype=np.float32) for name, shape in model.shapes.items()})
        client = self.joined(daemons, model, values=values, **options)
        pulled, batch, seen = model.zeros(), client.rows() if rows else None, []
        for step in range(steps):
            before(step)
            if rows:
                ids = random.integers(0, 50, 20, dtype=np.uint64) * np.uint64(2**57 + 12345)
                batch.make([("user", ids), ("item", ids[::-1].copy()), ("user", ids[:5].copy())])
                client.pull(pulled, batch)
                for table in ("user", "item"):
                    seen.append(batch.values(table)[np.argsort(batch.ids(table))])
                    batch.gradients(table)[:] = 1 + batch.values(table)
            else:
                client.pull(pulled)
            noise = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in model.shapes.items()}
            gradient = 0.1 * pulled + model.flatten(noise)
            if step % 2:
                push = client.partial_push(gradient, 8, rows=batch)
                for begin in range(model.size - 16, -1, -16):
                    push.ready(begin, 16)
                answer = push.finish().wait()
            else:
                answer = client.push(gradient, 8, rows=batch)
            self.assertEqual((answer.outcome, answer.staleness), ("applied", 0))
        client.pull(pulled)
        client.leave()
        return pulled, seen

    def test_one_trainer_makes_the_same_bits_as_with_one_daemon(self):
        for settings in ({"policy": "locked", "optimizer": '{"type":"adam","lr":0.01}'},
                         {"policy": "sync", "policy__round_timeout_ms": 600_000, "optimizer": '{"type":"sgd","lr":0.1,"momentum":0.9}', "shards": 5},
                         {"policy": "hogwild", "optimizer": '{"type":"sgd","lr":0.1}', "threads": 1}, GROUPS):
            name = f"{settings['policy']}{len(settings.get('groups', ()))}"
            one, _ = self.steps(self.several(1, name, **settings))
            for count, transport in ((2, "auto"), (3, "rpc")):
                with self.subTest(name, daemons=count):
                    several, _ = self.steps(self.several(count, f"{name}-{count}", **settings), transport=transport)
                    np.testing.assert_array_equal(several.view(np.uint32), one.view(np.uint32))

    def test_rows_of_tables_too(self):
        settings = {"policy": "locked", "optimizer": '{"type":"adagrad","lr":0.1}', "row_shards": 3}
        one, rows_of_one = self.steps(self.several(1, **settings), rows=True)
        daemons = self.several(2, "b", **settings)
        several, rows = self.steps(daemons, rows=True, transport="rpc")
        np.testing.assert_array_equal(several, one)
        for mine, other in zip(rows, rows_of_one):
            np.testing.assert_array_equal(mine, other)
        held = [{table["name"]: table["rows"] for table in daemon.status()["tables"]} for daemon in daemons]
        self.assertEqual(held[0]["user"] + held[1]["user"], 50)
        self.assertTrue(all(part["user"] > 10 for part in held), held)

    def divided(self, count, to, folders):
        """Divides the folders by psd repartition; returns those of the new daemons."""
        self.assert_ends(self.start_psd("repartition", *folders, "--daemons", count, "--to", to))
        return [to / f"partition-{i}" for i in range(count)]

    def test_another_number_of_daemons_makes_the_same_bits(self):
        settings = {"policy": "locked", "optimizer": '{"type":"adam","lr":0.01}', "row_shards": 3, "shards": 2}
        phases, values, rows = (2, 3, 1, 2), [], []  # number of daemons, for some steps each
        alone, random = self.several(1, **settings), np.random.default_rng(3)
        for _ in phases:
            values, seen = self.steps(alone, 4, True, random)
            rows += seen
        for durable in ("checkpoint", "log"):
            folders, random, others = [self.folder / f"{durable}-of-{i}" for i in range(phases[0])], np.random.default_rng(3), []
            for phase, count in enumerate(phases):
                if phase > 0:
                    folders = self.divided(count, self.folder / f"{durable}-{phase}", folders[::-1])
                self.addresses = [self.unix_address(f"{durable}{phase}{i}.sock") for i in range(count)]
                daemons = [self.one(i, durability={"type": durable, "path": str(folders[i])}, **settings) for i in range(count)]
                several, seen = self.steps(daemons, 4, True, random, transport="rpc")
                others += seen
                for daemon in daemons:
                    daemon.kill() if durable == "log" else self.assert_stops(daemon)
            with self.subTest(durable):
                np.testing.assert_array_equal(several.view(np.uint32), values.view(np.uint32))
                for mine, other in zip(others, rows, strict=True):
                    np.testing.assert_array_equal(mine, other)

    def test_a_model_that_moves_while_its_trainer_works_has_the_same_bits(self):
        settings = {"policy": "locked", "optimizer": '{"type":"adam","lr":0.01}', "row_shards": 3, "shards": 2}
        undisturbed, rows_of_one = self.steps(self.several(1, **settings), 16, True)
        serving, moves = [self.several(1, "from", **settings)], iter((3, 2, 1))

        reader, read = psd.Client(serving[0][0].address, retry_timeout=processes.WAIT_S), TABLES.zeros()
        self.addCleanup(reader.close)

        def before(step):
            if step == 1:
                reader.observe(TABLES)
            if step > 0:
                reader.pull(read)
            if step % 4 == 3 and (count := next(moves, None)):
                others = self.several(count, f"to{count}", **settings)
                move = self.start_psd("move", "--server", serving[-1][0].address, "--to", others[0].address)
                old = serving[-1]
                old[0].until_status("the move has begun", lambda status: status["state"] == "moving")
                ends.append((move, old))
                serving.append(others)

        ends = []
        moved, rows = self.steps(serving[0], 16, True, transport="rpc", retry_timeout=60, before=before)
        for move, old in ends:
            self.assert_ends(move)
            for daemon in old:
                self.assert_ends(daemon)
        self.assertEqual(len(ends), 3)
        reader.pull(read)
        np.testing.assert_array_equal(read.view(np.uint32), moved.view(np.uint32))
        np.testing.assert_array_equal(moved.view(np.uint32), undisturbed.view(np.uint32))
        for mine, other in zip(rows, rows_of_one, strict=True):
            np.testing.assert_array_equal(mine, other)

    def test_rounds_of_two_trainers(self):
        def train(daemons, rank, results):
            client = self.joined(daemons, rank=rank, world_size=2)
            values = MODEL.zeros()
            for step in range(10):
                client.pull(values)
                client.push(MODEL.flatten({name: np.full(shape, rank + step, np.float32) for name, shape in MODEL.shapes.items()}), 4)
            client.pull(values)
            results[rank] = values
            client.leave()

        made = []
        for count in (1, 2):
            daemons = self.several(count, f"s{count}", policy="sync", policy__start_trainers=2, policy__round_timeout_ms=600_000,
                                   optimizer='{"type":"sgd","lr":0.25}')
            results = {}
            threads = [threading.Thread(target=train, args=(daemons, rank, results)) for rank in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            np.testing.assert_array_equal(results[0], results[1])
            made.append(results[0])
        np.testing.assert_array_equal(made[0], made[1])

    def test_the_lead_gives_ranks_and_trainers_bring_all_partitions(self):
        daemons = self.several(2, policy="locked")
        ones = MODEL.flatten({name: np.ones(shape, np.float32) for name, shape in MODEL.shapes.items()})
        clients = [self.joined(daemons, rank=None, world_size=2, values=ones * (i + 1)) for i in range(2)]
        self.assertEqual([client.info.rank for client in clients], [0, 1])
        self.assertEqual([client.info.initialized_model for client in clients], [True, False])
        values = MODEL.zeros()
        clients[1].pull(values)
        np.testing.assert_array_equal(values, ones)  # the first one's, in both daemons
        with psd.Client(daemons[0].address) as reader:
            reader.observe(MODEL)
            values[:] = 0
            reader.pull(values)
            np.testing.assert_array_equal(values, ones)

    def test_a_killed_daemon_comes_back_alone(self):
        def settings(index):
            return {**COUNTING, "durability__type": "log", "durability__path": str(self.folder / f"saved{index}")}

        self.addresses = [self.unix_address(f"{i}.sock") for i in range(2)]
        daemons, events = [self.one(i, **settings(i)) for i in range(2)], []
        client = self.joined(daemons, on_event=lambda what, line: events.append((what, line)))
        gradient, values = MODEL.zeros(), MODEL.zeros()
        for view in MODEL.views(gradient).values():
            view[...] = -1
        for step in range(1, 31):
            client.push(gradient)
            if step % 7 == 0:
                index = step // 7 % 2
                daemons[index].kill()
                daemons[index] = self.one(index, **settings(index))
        client.pull(values)
        np.testing.assert_array_equal(values, -30 * gradient)
        self.assertTrue(any(what == "back" and line.startswith("daemon 0 of 2, unix://") for what, line in events), events)
        self.assertTrue(any(what == "back" and line.startswith("daemon 1 of 2, unix://") for what, line in events), events)

    def test_a_daemon_that_lost_everything_is_brought_the_newest_parameters(self):
        daemons = self.several(2, **COUNTING)
        client = self.joined(daemons, world_size=2)
        gradient, values = MODEL.flatten({name: -np.ones(shape, np.float32) for name, shape in MODEL.shapes.items()}), MODEL.zeros()
        client.push(gradient)
        client.pull(values)
        complaints = ("has values, and the lead has none", "has no values, and the daemons before it have some")
        for index, complaint in enumerate(complaints):
            daemons[index].kill()
            daemons[index] = self.one(index, **COUNTING)
            other = psd.Client(self.addresses[0])  # would send its initial values
            self.addCleanup(other.close)
            with self.assertRaisesRegex(psd.ModelMismatch, f"daemon 1 of 2, unix://.* {complaint}"):
                other.join(MODEL, MODEL.zeros(), 1, 2)
            other.close()
            client.push(gradient)
            client.pull(values)
            np.testing.assert_array_equal(values, -(index + 2) * gradient)

    def test_rounds_continue_after_daemons_were_down(self):
        settings = {"policy": "sync", "policy__round_timeout_ms": 300}
        daemons, done, go_on, faults = self.several(2, **settings), [0, 0], True, []

        def train(rank):
            try:
                client = self.joined(daemons[:1], rank=rank, world_size=2)
                values = MODEL.zeros()
                while go_on:
                    client.pull(values)
                    client.push(values)
                    done[rank] += 1
            except Exception as fault:  # pylint: disable=broad-exception-caught
                faults.append(fault)

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        try:
            for fault in range(6):
                before = list(done)
                processes.until("both train", lambda: faults or all(now > then + 3 for now, then in zip(done, before)))
                daemons[fault % 2].kill()
                daemons[fault % 2] = self.one(fault % 2, **settings)
            before = list(done)
            processes.until("both train again", lambda: faults or all(now > then + 3 for now, then in zip(done, before)))
        finally:
            go_on = False
            for thread in threads:
                thread.join()
        self.assertEqual(faults, [])

    def train_assigned(self, daemons, model, assignment, may, rank, pushed, faults, **options):
        """Trains the assigned samples with gradients that count them. While it may not push, it pulls."""
        try:
            client, values = self.joined(daemons, model, rank, 2, **options), model.zeros()
            while (assigned := client.take_samples(*assignment)).what == "range":
                gradient = model.zeros()
                for view in model.views(gradient).values():
                    view[assigned.begin:assigned.begin + assigned.count] = -1
                client.push(gradient, assigned.count)
                pushed[rank] += 1
                while not may():
                    client.pull(values)
            client.leave()
        except Exception as fault:  # pylint: disable=broad-exception-caught
            faults.append(fault)

    def test_assigned_samples_are_in_every_partition_once_though_daemons_are_killed(self):
        def settings(index):
            return {**COUNTING, "durability__type": "log", "durability__path": str(self.folder / f"saved{index}"), "world_size": {"min": 1, "max": 2}}

        samples, epochs, faults = 300, 4, []
        model = psd.Model("dealt", {"a": (samples, 2), "b": (samples,), "c": (samples,)})
        self.addresses = [self.unix_address(f"{i}.sock") for i in range(2)]
        daemons = [self.one(i, **settings(i)) for i in range(2)]

        train = functools.partial(self.train_assigned, daemons[:1], model, (5, samples, epochs), lambda: True)
        pushed = [0, 0]
        threads = [threading.Thread(target=train, args=(rank, pushed, faults)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for fault in range(8):
            index, goal = (0, 0, 1)[fault % 3], sum(pushed) + 12
            processes.until("both train", lambda: faults or sum(pushed) >= goal or not any(thread.is_alive() for thread in threads))
            daemons[index].kill()
            daemons[index] = self.one(index, **settings(index))
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [])
        reader, values = psd.Client(self.addresses[0]), model.zeros()
        self.addCleanup(reader.close)
        reader.observe(model)
        reader.pull(values)
        for name, view in model.views(values).items():
            np.testing.assert_array_equal(view, np.full(view.shape, epochs, np.float32), name)

    def test_assigned_samples_are_in_the_model_once_though_it_moves(self):
        def several(count, name):
            addresses = self.addresses = [self.unix_address(f"{name}{i}.sock") for i in range(count)]
            saved = {"save": str(self.folder / f"{name}.safetensors")} if count == 1 else {}
            return [self.daemon(listen=(addresses[i],), **({"daemons": addresses, "index": i} if count > 1 else {}), exit_when_done=True,
                                durability__type="log", durability__path=str(self.folder / f"{name}{i}"), **COUNTING, **saved) for i in range(count)]

        samples, epochs, faults, pushed = 400, 3, [], [0, 0]
        model = psd.Model("dealt", {"a": (samples, 2), "b": (samples,), "c": (samples,)})

        daemons, most = several(2, "a"), [40]
        train = functools.partial(self.train_assigned, daemons, model, (4, samples, epochs), lambda: sum(pushed) < most[0])
        threads = [threading.Thread(target=train, args=(rank, pushed, faults), kwargs={"retry_timeout": 60}) for rank in range(2)]
        for thread in threads:
            thread.start()
        for name, count in (("b", 3), ("c", 1)):
            goal = sum(pushed) + 20
            processes.until("both train", lambda goal=goal: faults or sum(pushed) >= goal)
            others = several(count, name)
            self.assert_ends(self.start_psd("move", "--server", daemons[0].address, "--to", others[0].address))
            for daemon in daemons:
                self.assert_ends(daemon)
            daemons = others
            most[0] += 40
        most[0] = samples * epochs
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [])
        self.assertLess(sum(pushed), samples * epochs / 4 + 10)
        self.assert_ends(daemons[0])  # all trainers are done, including those that had left
        self.assertEqual(processes.all_values(self.folder / "c.safetensors"), {float(epochs)})

    def test_what_does_not_fit_together_is_refused(self):
        lead, second = self.several(2, policy="locked")
        for model, complaint in ((psd.Model("tiny", {"w": (3,)}), "cannot be cut for 2 daemons: partition 1 would be empty"),
                                 (psd.Model("odd", {"w[0:9]": (99,)}), "'w\\[0:9\\]' has a name reserved for parts of tensors")):
            with self.assertRaisesRegex(psd.InvalidArgument, complaint):
                self.joined([lead], model)
        second.kill()
        wrong = self.daemon(listen=(self.addresses[1],), daemons=self.addresses, index=0, policy="locked")
        with self.assertRaisesRegex(psd.ProtocolMismatch, "daemon 1 of 2, unix://.* says that it is daemon 0 of 2"):
            psd.Client(lead.address)
        wrong.kill()
        alone = self.daemon(listen=(self.addresses[1],), policy="locked")
        with self.assertRaisesRegex(psd.ProtocolMismatch, "says that it is daemon 0 of 1"):
            psd.Client(lead.address)
        alone.kill()
        self.one(1, policy="sync", policy__round_timeout_ms=1_000)
        with self.assertRaisesRegex(psd.InvalidArgument, 'daemon 0 of 2.* has policy.type: "locked", daemon 1 of 2.* has policy.type: "sync"'):
            self.joined([lead])

    def test_a_group_that_takes_nothing_anywhere_is_refused(self):
        groups = [{"match": ["fc1*"], "policy": {"type": "locked"}}, {"match": ["nosuch*"], "policy": {"type": "locked"}}]
        client = psd.Client(self.several(2, policy="locked", groups=groups[:1])[0].address)  # whose tensors one daemon has
        self.addCleanup(client.close)
        client.join(MODEL, MODEL.zeros(), 0, 1)
        wrong = psd.Client(self.several(2, "n", policy="locked", groups=groups)[0].address)
        self.addCleanup(wrong.close)
        with self.assertRaisesRegex(psd.InvalidArgument, r"groups\[1\].match of the daemons' configuration matches no tensor"):
            wrong.join(MODEL, MODEL.zeros(), 0, 1)

    def test_abandoned_calls_with_rows(self):
        daemons = self.several(2, policy="locked")
        client = self.joined(daemons, TABLES, transport="rpc")
        rows, values = client.rows(), TABLES.zeros()
        for number in range(50):
            rows.make([("user", np.arange(500, dtype=np.uint64) * np.uint64(number + 1)), ("item", np.arange(300, dtype=np.uint64))])
            client.begin_pull(TABLES.zeros(), rows)
            client.begin_push(TABLES.zeros(), rows=rows)
        client.pull(values, rows)
        for daemon in daemons:
            daemon.until_status("all are there", lambda status: status["counters"]["gradients"] == 50)


if __name__ == "__main__":
    processes.main()
