"""Several daemons serve one model: the parameters are, bit by bit, those of one daemon."""

import threading

import numpy as np
import processes

import psd

# Cut in the midst of tensors, between them, and with tensors that no cut goes through.
MODEL = psd.Model("several", {"embed": (301, 7), "scale": (), "fc1.weight": (64, 33), "fc1.bias": (64,), "fc2.weight": (10, 64), "fc2.bias": (10,)})
TABLES = psd.Model("rows", {"w": (40, 3)}, [psd.Table("user", 3, "uniform", 0.1, 7), psd.Table("item", 2, "zero")])


class PythonSeveralDaemons(processes.ProcessTest):
    def several(self, count, name="a", **settings):
        """Daemons that serve a model together, each at a Unix socket; one alone for a count of 1."""
        addresses = [self.unix_address(f"{name}{i}.sock") for i in range(count)]
        return [self.daemon(listen=(address,), daemons=addresses, index=i, **settings) for i, address in enumerate(addresses)]

    def joined(self, daemons, model=MODEL, rank=0, world_size=1, values=None, **options):
        client = psd.Client(daemons[-1].address, **options)  # whichever: it tells of the others
        self.addCleanup(client.close)
        client.join(model, model.zeros() if values is None else values, rank, world_size)
        return client

    def steps(self, daemons, steps=12, rows=False, **options):
        """What one trainer makes of the model, by gradients that come from the parameters themselves."""
        model = TABLES if rows else MODEL
        random = np.random.default_rng(3)
        values = model.flatten({name: random.standard_normal(shape, dtype=np.float32) for name, shape in model.shapes.items()})
        client = self.joined(daemons, model, values=values, **options)
        pulled, batch, seen = model.zeros(), client.rows() if rows else None, []
        for step in range(steps):
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
                         {"policy": "hogwild", "optimizer": '{"type":"sgd","lr":0.1}', "threads": 1}):
            one, _ = self.steps(self.several(1, settings["policy"], **settings))
            for count, transport in ((2, "auto"), (3, "rpc")):
                with self.subTest(settings["policy"], daemons=count):
                    several, _ = self.steps(self.several(count, f"{settings['policy']}{count}", **settings), transport=transport)
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
            daemons, results = self.several(count, f"s{count}", policy="sync", policy__start_trainers=2, policy__round_timeout_ms=600_000, optimizer='{"type":"sgd","lr":0.25}'), {}
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
        self.assertEqual([client.info.brought_initial_values for client in clients], [True, False])
        values = MODEL.zeros()
        clients[1].pull(values)
        np.testing.assert_array_equal(values, ones)  # the first one's, in both daemons
        with psd.Client(daemons[0].address) as reader:
            reader.observe(MODEL)
            values[:] = 0
            reader.pull(values)
            np.testing.assert_array_equal(values, ones)

    def test_a_killed_daemon_comes_back_alone(self):
        addresses = [self.unix_address(f"k{i}.sock") for i in range(2)]

        def start(index):
            return self.daemon(listen=(addresses[index],), daemons=addresses, index=index, policy="locked", optimizer='{"type":"sgd","lr":1.0}',
                               durability__type="log", durability__path=str(self.folder / f"saved{index}"))

        daemons, events = [start(0), start(1)], []
        client = self.joined(daemons, on_event=lambda what, line: events.append((what, line)))
        gradient, values = MODEL.zeros(), MODEL.zeros()
        for view in MODEL.views(gradient).values():
            view[...] = -1
        for step in range(1, 31):
            client.push(gradient)
            if step % 7 == 0:
                index = step // 7 % 2
                daemons[index].kill()
                daemons[index] = start(index)
        client.pull(values)
        np.testing.assert_array_equal(values, -30 * gradient)
        self.assertTrue(any(what == "back" and line.startswith("daemon 0 of 2, unix://") for what, line in events), events)
        self.assertTrue(any(what == "back" and line.startswith("daemon 1 of 2, unix://") for what, line in events), events)

    def test_a_daemon_that_lost_everything_is_brought_the_newest_parameters(self):
        addresses = [self.unix_address(f"l{i}.sock") for i in range(2)]
        daemons = [self.daemon(listen=(addresses[i],), daemons=addresses, index=i, policy="locked", optimizer='{"type":"sgd","lr":1.0}') for i in range(2)]
        client = self.joined(daemons, world_size=2)
        gradient, values = MODEL.flatten({name: -np.ones(shape, np.float32) for name, shape in MODEL.shapes.items()}), MODEL.zeros()
        client.push(gradient)
        client.pull(values)
        daemons[1].kill()
        daemons[1] = self.daemon(listen=(addresses[1],), daemons=addresses, index=1, policy="locked", optimizer='{"type":"sgd","lr":1.0}')
        other = psd.Client(addresses[0])  # which would bring what it begins with
        self.addCleanup(other.close)
        with self.assertRaisesRegex(psd.ModelMismatch, "daemon 1 of 2, unix://.* has no values, and the daemons before it have some"):
            other.join(MODEL, MODEL.zeros(), 1, 2)
        other.close()
        client.push(gradient)
        client.pull(values)
        np.testing.assert_array_equal(values, -2 * gradient)
        daemons[0].kill()  # the lead
        daemons[0] = self.daemon(listen=(addresses[0],), daemons=addresses, index=0, policy="locked", optimizer='{"type":"sgd","lr":1.0}')
        other = psd.Client(addresses[0])
        self.addCleanup(other.close)
        with self.assertRaisesRegex(psd.ModelMismatch, "daemon 1 of 2, unix://.* has values, and the lead has none"):
            other.join(MODEL, MODEL.zeros(), 1, 2)
        other.close()
        client.push(gradient)
        client.pull(values)
        np.testing.assert_array_equal(values, -3 * gradient)

    def test_rounds_go_on_after_daemons_were_away(self):
        addresses = [self.unix_address(f"r{i}.sock") for i in range(2)]

        def start(index):
            return self.daemon(listen=(addresses[index],), daemons=addresses, index=index, policy="sync", policy__round_timeout_ms=300,
                               optimizer='{"type":"sgd","lr":0.01}')

        daemons, done, go_on, faults = [start(0), start(1)], [0, 0], True, []

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
                daemons[fault % 2] = start(fault % 2)
            before = list(done)
            processes.until("both train again", lambda: faults or all(now > then + 3 for now, then in zip(done, before)))
        finally:
            go_on = False
            for thread in threads:
                thread.join()
        self.assertEqual(faults, [])

    def test_what_does_not_fit_together_is_refused(self):
        addresses = [self.unix_address(f"w{i}.sock") for i in range(2)]
        lead = self.daemon(listen=(addresses[0],), daemons=addresses, index=0, policy="locked")
        wrong = self.daemon(listen=(addresses[1],), daemons=addresses, index=0, policy="locked")
        with self.assertRaisesRegex(psd.ProtocolMismatch, "daemon 1 of 2, unix://.* says that it is daemon 0 of 2"):
            psd.Client(lead.address)
        wrong.kill()
        alone = self.daemon(listen=(addresses[1],), policy="locked")
        with self.assertRaisesRegex(psd.ProtocolMismatch, "says that it is daemon 0 of 1"):
            psd.Client(lead.address)
        alone.kill()
        self.daemon(listen=(addresses[1],), daemons=addresses, index=1, policy="sync", policy__round_timeout_ms=1_000)
        with self.assertRaisesRegex(psd.InvalidArgument, 'daemon 0 of 2.* has policy.type: "locked", daemon 1 of 2.* has policy.type: "sync"'):
            self.joined([lead])
        with self.assertRaisesRegex(psd.InvalidArgument, "cannot be cut for 2 daemons: partition 1 would hold nothing"):
            self.joined([lead], psd.Model("tiny", {"w": (3,)}))


if __name__ == "__main__":
    processes.main()
