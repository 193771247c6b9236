"""Waits of the Python package: Ctrl-C, signals, callbacks, and threads that share a client. Real daemons."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import weakref

import ctrl_c
import line_clients
import processes
from line_clients import LINE

import psd


class PythonWaits(line_clients.LineTest):
    def end_wait(self, waits, call, *arguments):
        """Makes a call whose wait a signal's handler ends with an exception once `waits(frame)` holds."""
        class Stopped(Exception):
            pass

        def handler(_, frame):
            if waits(frame):
                raise Stopped

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handler))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        try:
            with self.assertRaises(Stopped):
                call(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def end_third_wait(self, function, call, *arguments):
        """end_wait() once the handler has run three times within `function`."""
        within = []

        def waits(frame):
            within.append(frame.f_code is function.__code__)
            return sum(within) > 2

        self.end_wait(waits, call, *arguments)

    def interrupted(self, code, daemon):
        """Seconds from a Ctrl-C to the end of a script that blocks, and its output."""
        process = subprocess.Popen([sys.executable, "-c", "import psd, sys\n" + code, daemon.address], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "waits\n")
        return process

    def test_a_script_that_ends_without_close_leaves(self):
        daemon = self.daemon(policy="locked")
        code = ("import psd, sys; model = psd.Model('m', {'w': (4,)}); client = psd.Client(sys.argv[1])\n"
                "client.join(model, model.zeros(), 0, 1); client.push(model.zeros())")
        for _ in range(10):
            subprocess.run([sys.executable, "-c", code, daemon.address], check=True, timeout=processes.WAIT_S)
        status = psd.Client(daemon.address).status()
        self.assertEqual([status["trainers"], status["trainers_lost"]], [[], 0])

    def test_threads_may_share_a_client(self):
        client = self.joined(self.daemon(policy="locked"))
        def work():
            for _ in range(50):
                client.push(LINE.zeros())
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(client.pull(LINE.zeros()).versions[0], 200)

    def test_calls_in_progress_can_be_awaited(self):
        daemon = self.daemon(policy="sync")
        first, second = (self.joined(daemon, LINE, rank, 2) for rank in range(2))

        async def work():
            values, pushes = LINE.zeros(), [client.begin_push(LINE.zeros()) for client in (first, second)]
            answers = await asyncio.gather(*pushes)
            self.assertEqual([answer.outcome for answer in answers], ["applied", "applied"])
            self.assertEqual([repr(push) for push in pushes], ["PendingPush(answered)"] * 2)
            basis = (await first.begin_pull(values)).versions
            self.assertEqual(basis[0], 1)
            # Cancelled: the wait ends, the call does not.
            push = first.begin_push(LINE.zeros(), basis=basis)
            self.assertEqual(repr(push), "PendingPush(in progress)")
            waits = asyncio.ensure_future(push)
            await asyncio.sleep(0)
            self.assertFalse(waits.done())
            waits.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waits
            with self.assertRaisesRegex(psd.InvalidArgument, "a call has one answer"):
                await push
            await second.begin_push(LINE.zeros(), basis=basis)
            self.assertEqual((await second.begin_pull(values)).versions[0], 2)
            with self.assertRaisesRegex(psd.InvalidArgument, "the model's layout has 32"):
                await first.begin_pull(LINE.zeros()[:16])
            # The end of the client ends the wait.
            last = first.begin_push(LINE.zeros(), basis=(await first.begin_pull(values)).versions)
            waits = asyncio.ensure_future(last)
            await asyncio.sleep(0)
            first.interrupt()
            with self.assertRaises(psd.Interrupted):
                await waits
            first.close()
            self.assertEqual(repr(second.begin_pull(values))[:12], "PendingPull(")

        asyncio.run(work())

    def test_ctrl_c_ends_what_waits(self):
        daemon = self.daemon(policy="sync")
        self.joined(daemon, psd.Model("m", {"w": (1,)}), 1, 2)  # a round waits for it
        join = "c = psd.Client(sys.argv[1]); m = psd.Model('m', {'w': (1,)}); c.join(m, m.zeros(), 0, 2)\n"
        awaits = "import asyncio\nasync def push(): await c.begin_push(m.zeros())\n"
        scripts = {"a push": join + "print('waits', flush=True); c.push(m.zeros())",
                   "an awaited push": join + awaits + "print('waits', flush=True); asyncio.run(push())",
                   "connecting": "print('waits', flush=True); psd.Client('unix:///nowhere/psd.sock')"}
        for what, script in scripts.items():
            with self.subTest(what):
                process = self.interrupted(script, daemon)
                if what != "connecting":
                    daemon.until_status("the push waits", lambda status: any(
                        each["step"] == 1 for each in status["trainers"]))
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=processes.WAIT_S)
                self.assertIn("KeyboardInterrupt", err.splitlines()[-1])
                self.assertEqual(process.returncode, -signal.SIGINT)

    def test_ctrl_c_ends_every_call_to_a_daemon_that_stands_still(self):
        def in_parts(client):
            push = client.partial_push(LINE.zeros())
            push.ready(0, LINE.size)
            push.finish().wait()

        calls = {"pull": lambda client: client.pull(LINE.zeros()),
                 "push": lambda client: client.push(LINE.zeros()),
                 "partial push": in_parts,
                 "ping": lambda client: client.ping(),
                 "status": lambda client: client.status(),
                 "set": lambda client: client.set("optimizer.lr=0.1"),
                 "take_samples": lambda client: client.take_samples(1, 10, 1),
                 "leave": lambda client: client.leave()}
        daemon = self.daemon(policy="locked")
        clients = [self.joined(daemon, LINE, rank, len(calls), transport="rpc") for rank in range(len(calls))]
        late = self.client(daemon)
        daemon.signal(signal.SIGSTOP)
        for client, (what, call) in zip(clients, calls.items()):
            with self.subTest(what):
                ctrl_c.check(self, what, lambda call=call, client=client: call(client), client.close)
        with self.subTest("join"):
            ctrl_c.check(self, "join", lambda: late.join(LINE, LINE.zeros(), 0, len(calls)), late.close)
        with self.subTest("connecting"):
            ctrl_c.check(self, "connecting", lambda: psd.Client(daemon.address), lambda: None)

    def test_ctrl_c_ends_a_round_that_waits(self):
        daemon = self.daemon(policy="sync")
        client, other = (self.joined(daemon, LINE, rank, 2) for rank in range(2))
        ctrl_c.check(self, "a round", lambda: client.push(LINE.zeros()), client.close)
        daemon.until_status("a daemon that answers receives it", lambda status: [each["rank"] for each in status["trainers"]] == [1])
        self.assertEqual(daemon.status()["trainers_lost"], 0)
        other.ping()

    def test_a_program_that_ctrl_c_ends_says_nothing_else(self):
        daemon = self.daemon(policy="locked")
        process = self.interrupted("m = psd.Model('m', {'w': (1,)}); c = psd.Client(sys.argv[1], transport='rpc')\n"
                                   "c.join(m, m.zeros(), 0, 1)\nprint('waits', flush=True)\nwhile True: c.pull(m.zeros())", daemon)
        daemon.signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=processes.WAIT_S)
        self.assertEqual(err.splitlines()[-1], "KeyboardInterrupt")
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_a_call_ended_by_a_signal_keeps_its_arrays(self):
        daemon = self.daemon(policy="sync", optimizer='{"type":"sgd","lr":1.0}')
        first, second = (self.joined(daemon, LINE, rank, 2) for rank in range(2))
        gradient = LINE.flatten({"weight": [-3], "bias": 0})
        array = weakref.ref(gradient)

        def waits(frame):
            return frame.f_code is psd.Client.push.__code__ and any(each["step"] == 1 for each in daemon.status()["trainers"])

        self.end_wait(waits, first.push, gradient)  # the round waits for the other
        self.assertEqual(first.step, 1)
        del gradient
        first.ping()
        gc.collect()
        self.assertIsNotNone(array())
        values = LINE.zeros()
        second.push(LINE.flatten({"weight": [-5], "bias": 0}))
        second.pull(values)
        self.assertEqual(LINE.views(values)["weight"].tolist(), [4])

        def is_released():
            first.ping()
            gc.collect()
            return array() is None

        processes.until("the array is released", is_released)

    def test_calls_of_a_signal_handler_are_refused_while_a_call_waits(self):
        def handler(_, frame):
            if frame.f_code is not psd.Client.push.__code__ or all(each["step"] != 1 for each in daemon.status()["trainers"]):
                return
            signal.setitimer(signal.ITIMER_REAL, 0)
            for call in (first.ping, lambda: first.push(LINE.zeros())):
                with self.assertRaisesRegex(psd.InvalidArgument, "within a callback"):
                    call()
            refused.set()

        daemon = self.daemon(policy="sync")
        first, second = (self.joined(daemon, LINE, rank, 2) for rank in range(2))
        refused = threading.Event()
        other = threading.Thread(target=lambda: refused.wait() and second.push(LINE.zeros()))
        other.start()
        self.addCleanup(refused.set)
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handler))
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        first.push(LINE.zeros())  # the round waits for the other
        other.join()
        self.assertTrue(refused.is_set())

    def test_a_move_is_continued_after_a_wait_that_a_signal_ended(self):
        def pull():
            while True:
                first.pull(values)  # waits for the other before it moves

        old, new = (self.daemon(policy="locked") for _ in range(2))
        first, second = (self.joined(old, LINE, rank, 2) for rank in range(2))
        values = LINE.zeros()
        move = self.start_psd("move", "--server", old.address, "--to", new.address)
        processes.until("the move has begun", lambda: "is about to move" in old.err)
        self.end_third_wait(psd.Client.pull, pull)
        other = threading.Thread(target=second.pull, args=(LINE.zeros(),))
        other.start()
        first.pull(values)
        other.join()
        self.assert_ends(move)
        first.push(LINE.zeros())
        self.assertEqual({shard["version"] for shard in new.status()["shards"]}, {1})

    def test_requests_for_samples_wait_for_one_whose_wait_a_signal_ended(self):
        daemon = self.daemon(policy="locked")
        first, other = (self.joined(daemon, LINE, rank, 2) for rank in range(2))
        self.assertIsNotNone(other.take_samples(4, 4, 1))  # all that there are
        self.end_third_wait(psd.Client.take_samples, first.take_samples, 4, 4, 1)
        taken = []
        waiting = [threading.Thread(target=lambda: taken.append(first.take_samples(4, 4, 1).what)) for _ in range(2)]
        for thread in waiting:
            thread.start()
        other.push(LINE.zeros(), samples=4)
        for thread in waiting:
            thread.join()
        self.assertEqual(taken, ["finished", "finished"])

    def test_a_thread_that_waits_leaves_the_client_to_others(self):
        daemon = self.daemon(policy="sync")
        first, second = (self.joined(daemon, LINE, rank, 2) for rank in range(2))
        waiting = threading.Thread(target=first.push, args=(LINE.zeros(),))
        waiting.start()
        daemon.until_status("the round waits for the other", lambda status: any(each["step"] == 1 for each in status["trainers"]))
        first.ping()
        first.pull(LINE.zeros())
        self.assertTrue(waiting.is_alive())
        second.push(LINE.zeros())
        waiting.join()

    def test_a_client_may_be_closed_while_threads_wait_and_in_its_own_callback(self):
        daemon = self.daemon(policy="sync")
        first = self.joined(daemon, LINE, 0, 2)
        self.joined(daemon, LINE, 1, 2)
        failures = []

        def push():
            try:
                first.push(LINE.zeros())
            except psd.Error as error:
                failures.append(error)

        waiting = threading.Thread(target=push)
        waiting.start()
        daemon.until_status("the round waits for the other", lambda status: any(each["step"] == 1 for each in status["trainers"]))
        first.close()
        waiting.join()
        self.assertIsInstance(failures[0], psd.Interrupted)
        clients, events = [], []

        def on_event(what, _):
            try:
                clients[0].ping()
            except psd.InvalidArgument as error:
                events.append(what)
                self.assertIn("within a callback", str(error))
            clients[0].close()

        other = self.daemon()
        clients.append(self.joined(other, on_event=on_event))
        other.kill()
        with self.assertRaises(psd.Interrupted):
            clients[0].push(LINE.zeros())
        self.assertEqual(events, ["broke"])


if __name__ == "__main__":
    processes.main()
