"""What a Python program asks of a daemon as an operator does: status, set and checkpoint, by its role. Real daemons."""

import json
import subprocess
import threading

import line_clients
import processes
from line_clients import LINE

import psd

ADAM = {"policy": "locked", "optimizer": '{"type":"adam","lr":0.5}'}


class PythonOperator(line_clients.LineTest):
    def saving(self, name="gespeichert-ü", **settings):
        return {"durability__type": "checkpoint", "durability__path": str(self.folder / name), **settings}

    def several(self, count, **settings):
        addresses = [self.unix_address(f"{i}.sock") for i in range(count)]
        return [self.daemon(listen=(addresses[i],), daemons=addresses, index=i, **ADAM, **self.saving(f"saved-{i}"), **settings)
                for i in range(count)]

    def test_a_client_asks_before_and_after_it_joins(self):
        daemon = self.daemon(listen=(self.unix_address(),), **ADAM, **self.saving())
        client = self.client(daemon)
        for joins in (False, True):
            if joins:
                client.join(LINE, LINE.zeros(), 0, 1)
            printed = json.loads(subprocess.run([processes.PSD, "status", "--json", "--server", daemon.address], capture_output=True,
                                                check=True, timeout=processes.WAIT_S).stdout)
            status = client.status()
            self.assertEqual(status.keys(), printed.keys())
            self.assertEqual(len(status["trainers"]), int(joins))
        self.assertEqual(client.set("optimizer.lr=0.25"), "optimizer.lr: 0.5 -> 0.25")
        gradient, values = LINE.flatten({"weight": [1], "bias": 0}), LINE.zeros()
        client.push(gradient)
        client.pull(values)
        self.assertAlmostEqual(float(LINE.views(values)["weight"][0]), -0.25, 5)  # adam's first step is its rate
        path = client.checkpoint()
        self.assertEqual(path, str(self.folder / "gespeichert-ü" / "checkpoint-0000000001"))
        with self.assertRaisesRegex(psd.InvalidArgument, "optimizer.lr"):
            client.set("optimizer.lr=fast")
        with self.assertRaisesRegex(TypeError, "assignment is 0.1; expected text"):
            client.set(0.1)
        client.push(gradient)  # none of it has ended the session

    def test_save_does_not_keep_rows_of_tables(self):
        for model in (LINE, psd.Model("rows", {"weight": (1,)}, [psd.Table("item", 4)])):
            daemon = self.daemon("--set", f"save={self.folder / 'final.safetensors'}", **ADAM)
            client = self.client(daemon)
            client.join(model, model.zeros(), 0, 1)
            self.assertEqual(client.status()["loses_model"], bool(model.tables))
        stop = subprocess.run([processes.PSD, "stop", "--server", daemon.address], capture_output=True, text=True, check=False,
                              timeout=processes.WAIT_S)
        self.assertEqual(stop.returncode, 1)
        self.assertIn("stopping would discard the rows of the model's tables", stop.stderr)
        client.push(model.zeros())  # it has not ended

    def test_threads_ask_at_once(self):
        client, faults = self.client(self.daemon()), []

        def work():
            try:
                for _ in range(20):
                    client.status()
            except psd.Error as fault:
                faults.append(fault)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [])

    def test_a_role_permits_what_it_includes(self):
        made = {role: self.make_token(f"a-{role}", role) for role in ("reader", "trainer", "admin")}
        daemon = self.daemon(auth=f'{{"tokens":"{self.folder / "tokens"}"}}', **ADAM, **self.saving())
        for role, token in made.items():
            client = self.client(daemon, token=token)
            self.assertEqual(client.status()["policy"], "locked")
            if role == "admin":
                self.assertEqual(client.set("optimizer.lr=0.1"), "optimizer.lr: 0.5 -> 0.1")
                continue
            for call in (lambda client=client: client.set("optimizer.lr=0.2"), client.checkpoint):
                with self.assertRaisesRegex(psd.Forbidden, f"^{daemon.address}: this requires role admin; 'a-{role}' has role {role}$"):
                    call()
            client.status()

    def test_several_daemons_change_together_or_not_at_all(self):
        daemons = self.several(2)
        client = self.client(daemons[1])
        self.assertEqual([one["partition"]["index"] for one in client.status()["daemons"]], [0, 1])
        self.assertEqual(client.set("optimizer.lr=0.25"), "optimizer.lr: 0.5 -> 0.25")
        for wrong in ("optimizer.lr=fast", "policy.type=unknown"):
            with self.assertRaisesRegex(psd.InvalidArgument, "^daemon 0 of 2, .*; nothing has changed$"):
                client.set(wrong)
        # Only the second daemon refuses it.
        with self.assertRaisesRegex(psd.InvalidArgument, "^daemon 1 of 2, .*; nothing has changed$"):
            client.set(f"durability.path={self.folder / 'saved-0'}")
        with self.assertRaisesRegex(psd.NotReady, "^daemon 0 of 2, "):
            client.checkpoint()
        client.join(LINE, LINE.zeros(), 0, 1)
        self.assertEqual(client.checkpoint().splitlines(), [str(self.folder / f"saved-{i}" / "checkpoint-0000000001") for i in range(2)])
        daemons[1].kill()
        with self.assertRaises(psd.Unavailable):
            self.client(daemons[0], connect_timeout=0.2).checkpoint()

    def test_status_continues_after_a_restart(self):
        address = self.unix_address()
        daemon = self.daemon(listen=(address,))
        client = self.client(daemon, on_event=lambda *_: None)
        before = client.status()
        daemon.kill()
        self.daemon(listen=(address,))
        self.assertNotEqual(client.status()["pid"], before["pid"])


if __name__ == "__main__":
    processes.main()
