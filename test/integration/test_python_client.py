"""The Python package with numpy: training, one-line errors, and Ctrl-C. Real daemons."""

import logging
import os
import pickle
import re
import subprocess
import sys
import unittest.mock

import certificates
import line_clients
import numpy as np
import processes
from line_clients import LINE

import psd


def gradient_of(values, random, samples=16):
    """Gradient of the mean squared error of y = 2x + 1."""
    parameters = LINE.views(values)
    x = random.uniform(-1, 1, samples).astype(np.float32)
    error = parameters["weight"] * x + parameters["bias"] - (2 * x + 1)
    return LINE.flatten({"weight": [np.mean(2 * error * x)], "bias": np.mean(2 * error)})


class PythonClient(line_clients.LineTest):
    def test_shows_who_it_is(self):
        authority = certificates.Authority(self.folder)
        certificate, key = authority.sign("server", "psd", "IP:127.0.0.1")
        tokens = self.folder / "tokens"
        eve, file = self.make_token("eve", "reader"), self.make_token_file("pool", "trainer")
        daemon = self.daemon(listen=("tls://127.0.0.1:0", self.unix_address()), auth=f'{{"tokens":"{tokens}"}}',
                             tls=f'{{"certificate":"{certificate}","key":"{key}"}}')
        trusts = {"tls_ca": authority.path}
        for given, wrong in (({}, psd.Unauthenticated), ({"token": "wrong"}, psd.Unauthenticated)):
            with self.assertRaises(wrong) as failed:
                self.client(daemon, **trusts, **given)
            self.assertFalse(failed.exception.retryable)
        with self.assertRaises(psd.Forbidden) as failed:
            self.joined(daemon, token=eve, **trusts)
        self.assertIn("this requires role trainer; 'eve' has role reader", str(failed.exception))
        with self.assertRaises(psd.Unauthenticated):  # the system's authorities have not signed it
            self.client(daemon, token_file=file)
        with unittest.mock.patch.dict(os.environ, {"PSD_TOKEN_FILE": "/absent"}):  # an explicit argument takes precedence
            self.joined(daemon, token=file.read_text().strip(), **trusts).leave()
        for options, complaint in (({"token": "x", "token_file": file}, "token and token_file are both given"),
                                   ({"token": "two words"}, "token: not a valid token"),
                                   ({"connect_timeout": float("inf")}, "connect_timeout is from 0 to"),
                                   ({"retry_timeout": float("nan")}, "retry_timeout is from 0 to"),
                                   ({"connect_timeout": -1.0}, "connect_timeout is from 0 to")):
            with self.assertRaisesRegex(psd.InvalidArgument, complaint):
                self.client(daemon, **options)
        client = self.joined(daemon, token_file=file, **trusts)
        values = LINE.zeros()
        client.pull(values)
        client.push(LINE.zeros(), samples=1)
        client.leave()

    def test_fits_a_line_with_pulls_and_pushes_of_each_kind(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":0.1}')
        values, random = LINE.zeros(), np.random.default_rng(1)
        with psd.Client(daemon.address) as client:
            info = client.join(LINE, values, 0, 1)
            self.assertTrue(info.initialized_model)
            for step in range(300):
                pulled = client.begin_pull(values)
                versions = pulled.wait().versions
                gradient = gradient_of(values, random)
                if step % 2:
                    push = client.partial_push(gradient, 16, basis=versions)
                    push.ready(16, LINE.size - 16)
                    push.ready(0, 16)
                    answer = push.finish().wait()
                else:
                    answer = client.push(gradient, 16, basis=versions)
                self.assertEqual((answer.outcome, answer.staleness), ("applied", 0))
            client.pull(values)
        self.assertAlmostEqual(float(LINE.views(values)["weight"][0]), 2, 2)
        self.assertAlmostEqual(float(LINE.views(values)["bias"]), 1, 2)
        self.assertEqual(daemon.status()["trainers"], [])

    def test_values_travel_in_slices_of_the_size_that_is_said(self):
        daemon, model = self.daemon(policy="locked", shards=1), psd.Model("large", {"w": (16 << 10,)})

        def slices_of_a_pull(**options):
            before = daemon.counter("pull_slices")
            with psd.Client(daemon.address, transport="rpc", **options) as client:
                client.join(model, model.zeros(), 0, 1)
                client.pull(model.zeros())
            return daemon.counter("pull_slices") - before

        self.assertEqual(slices_of_a_pull(), 1)
        for window in (1, 7):
            self.assertEqual(slices_of_a_pull(chunk=4096, window=window), 16)

    def test_flat_arrays_begin_at_a_multiple_of_64_bytes(self):
        for size in (1, 17, 1 << 20):
            array = psd.Model("m", {"w": (size,)}).zeros()
            self.assertEqual((array.ctypes.data % 64, array.size % 16, array.any()), (0, 0, False))

    def test_arrays_of_abandoned_calls_may_be_freed(self):
        daemon = self.daemon()
        model = psd.Model("large", {"w": (1 << 20,)})
        client = self.joined(daemon, model)
        for _ in range(20):  # dropped at once, arrays and all
            client.begin_push(np.ones(model.size, np.float32))
            client.begin_pull(np.empty(model.size, np.float32))
        client.partial_push(np.ones(model.size, np.float32)).ready(0, 16)
        values = model.zeros()
        client.pull(values)
        self.assertGreaterEqual(client.bytes_pulled, values.nbytes)

    def test_rows_of_tables(self):
        daemon = self.daemon(policy="locked", optimizer='{"type":"sgd","lr":1.0}')
        model = psd.Model("rows", {"bias": (1,)}, [psd.Table("item", 4, "zero"), psd.Table("user", 2, "uniform", 0.1, 7)])
        client = self.joined(daemon, model)
        values, rows = model.zeros(), client.rows()
        self.assertFalse(rows)
        ids = np.array([5, 2**63, 5, 0], np.uint64)
        rows.make([("item", ids), ("user", np.array([-1, 3], np.int64))])
        client.pull(values, rows)
        self.assertEqual(len(rows), 5)
        self.assertEqual(rows.values("item").shape, (3, 4))
        self.assertIn(2**64 - 1, rows.ids("user"))
        first = rows.values("user").copy()
        self.assertTrue(np.all(np.abs(first) <= 0.1) and np.any(first != 0))
        np.add.at(rows.gradients("item"), rows.places(0), -np.ones((4, 4), np.float32))
        kept = rows.values("item")
        client.push(model.zeros(), rows=rows)
        rows.make([("item", ids)])
        client.pull(values, rows)
        self.assertEqual(rows.values("item")[rows.places(0)][:, 0].tolist(), [2, 1, 2, 1])  # id 5 occurred twice
        self.assertTrue(np.all(kept == 0), "an array is left as it was by the next make()")
        for wrong, message in (("nothing", "the model has no table 'nothing'"), ("item", "there is no feature 3")):
            with self.assertRaisesRegex(psd.InvalidArgument, message):
                rows.values(wrong)
                rows.places(3)

    def test_what_is_wrong_is_said_in_one_line(self):
        daemon = self.daemon()
        client = self.joined(daemon)
        wrong = [
            (lambda: client.pull(np.zeros(LINE.size)), TypeError, "destination of a pull must be .*float32.*float64"),
            (lambda: client.pull(np.zeros(7, np.float32)), psd.InvalidArgument, "has 7 elements; the model's layout has 32"),
            (lambda: client.push(np.zeros((2, 16), np.float32)), TypeError, r"gradient.*shape \(2, 16\)"),
            (lambda: client.push(np.full(LINE.size, np.nan, np.float32)), psd.NonFinite, "^weight holds nan at element 0 of 1$"),
            (lambda: self.joined(daemon, rank=0, world_size=1), psd.RankTaken, "rank 0"),
            (lambda: self.joined(daemon, psd.Model("other", {"w": (3,)}), 0, 1), psd.ModelMismatch,
             "w f32.*; a daemon serves one model, and another model needs"),
            (lambda: psd.Model("none"), psd.InvalidArgument, "neither tensors nor tables"),
            (lambda: psd.Model("m", {"my task.weight": (1,)}), psd.InvalidArgument,
             "^tensor 'my task.weight' has a name with a character that is not visible ASCII: a space at byte 2$"),
            (lambda: psd.Client(daemon.address, lr=0.1), psd.InvalidArgument, "^lr is no argument here.*the daemon, whose configuration sets it"),
            (lambda: psd.Client(daemon.address, retry_timout=3), TypeError, "did you mean 'retry_timeout'"),
            (lambda: psd.Client(daemon.address, token_file="/nowhere"), psd.InvalidArgument, "^token_file: .*nowhere"),
            (lambda: psd.Client("nonsense"), psd.InvalidArgument, "nonsense"),
            (lambda: psd.Client("unix:///nowhere/psd.sock", connect_timeout=0.1), psd.Unavailable, "nowhere"),
            (lambda: psd.Client("tcp://localhost:1", transport="pigeon"), psd.InvalidArgument, "pigeon"),
            (lambda: psd.Client(daemon.address, window=0), psd.InvalidArgument, "window is 0; expected a whole number from 1 to 1024$"),
            (lambda: psd.Client(daemon.address, window=1.5), TypeError, r"window is 1\.5; expected a whole number$"),
            (lambda: psd.Client(daemon.address, chunk=100), psd.InvalidArgument, "chunk is 100; expected a whole number from 4096 to 67108864"),
            (lambda: client.ping(2**40), psd.InvalidArgument, "1 to 1000000 calls"),
            (lambda: client.ping(1, 0), psd.InvalidArgument, "1 to 65536 of them outstanding, not 1 and 0"),
            (lambda: pickle.dumps(client), TypeError, "cannot be pickled"),
            (lambda: client.push(LINE.zeros(), samples=-1), psd.InvalidArgument, "^samples is -1; expected a whole number from 0 to 4294967295$"),
            (lambda: client.push(LINE.zeros(), samples=1.5), TypeError, r"^samples is 1\.5; expected a whole number$"),
            (lambda: client.push(LINE.zeros(), basis=["x"]), TypeError, "^a version of basis is 'x'"),
            (lambda: client.push(LINE.zeros(), rows=7), TypeError, r"^rows is 7; expected what client.rows\(\) gave"),
            (lambda: client.ping("many"), TypeError, "^calls is 'many'"),
            (lambda: client.take_samples(2**32, 1, 1), psd.InvalidArgument, "^count is 4294967296"),
            (lambda: client.report({"loss": "low"}), TypeError, "^'loss' is 'low'; expected a number"),
            (lambda: client.report(0.5), psd.InvalidArgument, "^values is 0.5; expected a dictionary"),
            (lambda: client.report({1: 2.0}), TypeError, "^the name of a value is 1"),
            (lambda: self.client(daemon).join({"w": (1,)}, LINE.zeros(), 0, 1), TypeError, "^model is {'w': .*; expected a psd.Model"),
            (lambda: self.client(daemon).join(LINE, LINE.zeros(), -1, 1), psd.InvalidArgument, "^rank is -1"),
            (lambda: psd.Client(daemon.address, connections=-1), psd.InvalidArgument, "^connections is -1"),
            (lambda: psd.Client(daemon.address, connect_timeout="long"), TypeError, "^connect_timeout is 'long'; expected a number"),
            (lambda: psd.Client(daemon.address, connections=0), psd.InvalidArgument, "^connections is 0; expected a whole number from 1 to 64$"),
            (lambda: psd.Client([daemon.address, 7]), TypeError, "^a server is 7; expected text"),
            (lambda: psd.Client(5500), TypeError, "^a server is 5500; expected text"),
            (lambda: psd.Client(daemon.address, on_event=7), TypeError, "^on_event is 7; expected a function"),
            (lambda: client.partial_push(LINE.zeros()).ready(-1, 2), TypeError, "^begin is -1; expected a whole number of elements, from 0"),
            (lambda: client.rows().make(7), TypeError, "^features is 7; expected pairs"),
            (lambda: client.rows().values(7), TypeError, "^table is 7; expected the name of a table"),
            (lambda: client.rows().places("x"), TypeError, "^feature is 'x'; expected its place"),
            (lambda: psd.Model("m", {"w": (2.5,)}), TypeError, r"^a size of tensor 'w' is 2\.5; expected a whole number"),
            (lambda: psd.Model("m", {"w": (-1,)}), psd.InvalidArgument, "^a size of tensor 'w' is -1"),
            (lambda: psd.Model("m", {"w": 3}), TypeError, r"^the shape of tensor 'w' is 3; expected whole numbers, as \(3, 4\)"),
            (lambda: psd.Model("m", {}, [psd.Table("item", "64")]), TypeError, "^dim is '64'; expected a whole number"),
            (lambda: psd.Model("m", {}, ["item"]), TypeError, "^a table is 'item'; expected a psd.Table"),
            (lambda: LINE.flatten({"weight": 1.0, "bias": 0}), psd.InvalidArgument, r"^the array of tensor 'weight' has shape \(\); expected \(1,\)"),
            (lambda: LINE.flatten({"weight": [1], "bias": [0]}), psd.InvalidArgument, r"^the array of tensor 'bias' has shape \(1,\); expected \(\)"),
            (lambda: LINE.flatten({"weight": [1]}), psd.InvalidArgument, "^there is no array of tensor 'bias'"),
        ]
        before = "before join.*client.join.model, values"
        new = self.client(daemon)
        wrong += [(lambda call=call: call(new), psd.InvalidArgument, before) for call in (
            lambda client: client.pull(LINE.zeros()), lambda client: client.push(LINE.zeros()), lambda client: client.partial_push(LINE.zeros()),
            lambda client: client.rows(), lambda client: client.take_samples(1, 1, 1), lambda client: client.report({"loss": 1.0}))]
        wrong.append((new.round_due, psd.InvalidArgument, "before the first pull"))
        for call, kind, message in wrong:
            with self.subTest(message), self.assertRaisesRegex(kind, message) as raised:
                call()
            self.assertNotIn("\n", str(raised.exception))
        self.assertEqual(LINE.flatten({"weight": np.float64([2]), "bias": np.int32(3)})[16], 3)
        self.assertEqual(client.push(LINE.zeros(), samples=np.int64(7)).outcome, "applied")
        with self.assertRaises(psd.Error) as taken:
            self.joined(daemon, rank=0, world_size=1)
        self.assertEqual(taken.exception.code, "rank taken")
        self.assertTrue(client.pull(LINE.zeros()).versions, "the session continues")
        client.close()
        with self.assertRaisesRegex(psd.InvalidArgument, "closed"):
            client.pull(LINE.zeros())

    def test_arrays_that_do_not_fit_are_refused_by_their_name(self):
        client = self.joined(self.daemon())
        size, read_only = LINE.size, LINE.zeros()
        read_only.flags.writeable = False
        arrays = [(np.zeros(size), "dtype float64"), (np.zeros((2, size // 2), np.float32), rf"shape \(2, {size // 2}\)"),
                  (np.zeros(2 * size, np.float32)[::2], "not contiguous"), ([0.0] * size, "not list"), (None, "not NoneType")]
        takers = {"the initial values": lambda array: self.client(self.processes[0]).join(LINE, array, 0, 1),
                  "the destination of a pull": client.pull, "the gradient of a push": client.push}
        for name, call in takers.items():
            own = [(read_only, "read-only")] if "destination" in name else []
            for array, message in arrays + own:
                with self.subTest(f"{name}: {message}"), self.assertRaisesRegex(TypeError, f"^{name} must be a flat, .*{message}") as raised:
                    call(array)
                self.assertNotIn("\n", str(raised.exception))
        client.push(read_only)  # the array is only read
        rows = client.rows()
        for ids, message in ((np.zeros(3), "dtype float64"), (np.zeros((2, 2), np.int64), r"shape \(2, 2\)"), (np.zeros(4, np.uint64)[::2], "not contiguous")):
            with self.assertRaisesRegex(TypeError, f"^ids must be a flat, .*{message}"):
                rows.make([("item", ids)])

    def test_arrays_of_dlpack_are_used_where_they_lie(self):
        class Exchanged:
            """Supports only DLPack."""

            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        client = self.joined(self.daemon(policy="locked", optimizer='{"type":"sgd","lr":1.0}'))
        values, gradient = LINE.zeros(), LINE.flatten({"weight": [-3], "bias": -4})
        client.push(Exchanged(gradient))
        client.pull(Exchanged(values))
        self.assertEqual(LINE.views(values)["weight"].tolist(), [3])
        # Written after the call started, and before it is sent: the caller's memory is sent.
        push = client.partial_push(Exchanged(gradient))
        gradient[:] = LINE.flatten({"weight": [-10], "bias": -20})
        push.ready(0, LINE.size)
        push.finish().wait()
        client.pull(values)
        self.assertEqual((LINE.views(values)["weight"].tolist(), float(LINE.views(values)["bias"])), ([13], 24))

    def test_arrays_that_begin_anywhere_are_taken(self):
        daemon = self.daemon(listen=("tcp://127.0.0.1:0",), policy="locked", optimizer='{"type":"sgd","lr":1.0}')
        size = LINE.size

        def begins_4_bytes_on(values=None):
            array = np.zeros(size + 3, np.float32)
            start = 1 if array.ctypes.data % 8 == 0 else 2
            array[start : start + size] = 0 if values is None else values
            self.assertEqual(array[start : start + size].ctypes.data % 8, 4)
            return array[start : start + size]

        client = self.client(daemon, retry_timeout=1.0)
        client.join(LINE, begins_4_bytes_on(LINE.flatten({"weight": [5], "bias": 6})), 0, 1)
        client.push(begins_4_bytes_on(LINE.flatten({"weight": [-1], "bias": -2})))
        values = begins_4_bytes_on()
        client.pull(values)
        self.assertEqual((LINE.views(values)["weight"].tolist(), float(LINE.views(values)["bias"])), ([6], 8))
        with self.assertRaisesRegex(psd.InvalidArgument, "begins 4 bytes off a multiple of 8"):  # its array is read while it is filled
            client.partial_push(begins_4_bytes_on()).finish().wait()

    def test_one_push_at_a_time_is_computed(self):
        client = self.joined(self.daemon(policy="locked"))
        push = client.partial_push(LINE.zeros())
        for begin in (client.push, client.begin_push, client.partial_push):
            with self.assertRaisesRegex(psd.InvalidArgument, "the previous partial_push.. is not finished"):
                begin(LINE.zeros())
        push.ready(0, LINE.size)
        push.finish().wait()
        client.push(LINE.zeros())
        push = client.partial_push(LINE.zeros())
        del push  # abandons it
        self.assertEqual(client.push(LINE.zeros()).outcome, "applied")

    def test_elements_are_reported_once(self):
        client = self.joined(self.daemon(policy="locked"))
        for ranges in (((0, LINE.size), (0, LINE.size)), ((0, 16), (0, 16)), ((0, 20), (16, LINE.size - 16))):
            push = client.partial_push(LINE.zeros())
            for begin, count in ranges:
                push.ready(begin, count)
            with self.subTest(ranges), self.assertRaisesRegex(psd.InvalidArgument, "elements were reported more than once"):
                push.finish().wait()
            client.pull(LINE.zeros())

    def test_the_program_may_end_while_something_waits(self):
        daemon = self.daemon(policy="locked")
        code = """
import psd, sys
model = psd.Model("line", {"weight": (1,), "bias": ()})
c = psd.Client(sys.argv[1])
c.join(model, model.zeros(), 0, 1)
%s
del c
"""
        for last in ("p = c.begin_pull(model.zeros())", "p = c.begin_push(model.zeros())", "p = c.partial_push(model.zeros())",
                     "p = c.partial_push(model.zeros()); p.ready(0, model.size); p = p.finish()"):
            with self.subTest(last):
                run = subprocess.run([sys.executable, "-c", code % last, daemon.address], capture_output=True, text=True,
                                     timeout=processes.WAIT_S, check=False)
                self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_there_is_a_class_for_each_code_of_the_protocol(self):
        schema = (processes.REPO / "schema" / "status.capnp").read_text(encoding="utf-8")
        codes = re.findall(r"^  (\w+) @\d+;", schema.partition("enum ErrorCode {")[2].partition("}")[0], re.MULTILINE)
        names = {"io": "InputOutputError"}
        classes = [getattr(psd, names.get(code, code[0].upper() + code[1:])) for code in codes]
        self.assertEqual(len(set(classes)), len(codes))
        self.assertGreaterEqual(len(codes), 16)
        for kind in classes:
            error = psd.errors.of(kind.code, "line", True)
            self.assertIs(type(error), kind)
            self.assertTrue(isinstance(error, psd.Error) and error.retryable)
        with self.assertRaises(psd.InvalidArgument) as wrong:
            psd.Client("nonsense")
        self.assertEqual((wrong.exception.code, wrong.exception.retryable), ("invalid argument", False))
        with self.assertRaises(psd.Unavailable) as unreachable:
            psd.Client("unix:///nowhere/psd.sock", connect_timeout=0.1)
        self.assertEqual((unreachable.exception.code, unreachable.exception.retryable), ("unavailable", True))

    def test_a_fork_is_refused_and_harms_no_other_process(self):
        client = self.joined(self.daemon())
        push = client.partial_push(LINE.zeros())
        push.ready(0, 16)
        child = os.fork()
        if child == 0:
            del push
            try:
                client.pull(LINE.zeros())
            except psd.InvalidArgument as error:
                os._exit(42 if "forked" in str(error) else 1)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 42)
        push.ready(16, LINE.size - 16)
        self.assertEqual(push.finish().wait().outcome, "applied")
        client.pull(LINE.zeros())

    def test_a_killed_daemon_restarts(self):
        address = self.unix_address()
        settings = {"durability__type": "log", "durability__path": str(self.folder / "saved")}
        daemon = self.daemon(listen=(address,), policy="locked", optimizer='{"type":"sgd","lr":1.0}', **settings)
        events = []
        client = self.joined(daemon, on_event=lambda what, line: events.append(what))
        gradient, values = LINE.flatten({"weight": [-1], "bias": 0}), LINE.zeros()
        for step in range(1, 21):
            client.push(gradient)
            if step % 7 == 0:
                daemon.kill()
                daemon = self.daemon(listen=(address,), policy="locked", optimizer='{"type":"sgd","lr":1.0}', **settings)
        client.pull(values)
        self.assertEqual(float(LINE.views(values)["weight"][0]), 20)
        self.assertEqual(set(events), {"broke", "back"})

    def test_a_rank_that_this_process_has_itself_is_named(self):
        daemon = self.daemon()
        client = self.client(daemon)
        client.join(LINE, LINE.zeros(), 0, 1)
        for rank, world_size in ((None, None), (0, 1)):  # as by a notebook's cell that is run again
            with self.assertRaisesRegex(psd.RankTaken, r"; this process itself has rank 0: close\(\) the optimizer, learner or client") as taken:
                self.client(daemon).join(LINE, LINE.zeros(), rank, world_size)
            self.assertNotIn("\n", str(taken.exception))
        child = os.fork()
        if child == 0:  # has not joined itself
            os._exit(len(psd.client._joined))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        client.leave()
        client.close()
        self.client(daemon).join(LINE, LINE.zeros(), 0, 1)

    def test_without_a_world_size_anywhere_it_is_alone(self):
        with unittest.mock.patch.dict("os.environ"):
            for name in ("RANK", "WORLD_SIZE"):
                os.environ.pop(name, None)
            daemon = self.daemon()
            for _ in range(2):
                with self.client(daemon) as client:
                    info = client.join(LINE, LINE.zeros())
                    self.assertEqual((info.rank, info.world_size), (0, 1))
                    with self.assertRaisesRegex(psd.RankTaken, "^the only rank is taken .*close that one first, or .* WORLD_SIZE"):
                        self.client(daemon).join(LINE, LINE.zeros())
            with self.assertRaisesRegex(psd.InvalidArgument, "^rank 0 gives no world size.*world_size= of Python, or WORLD_SIZE"):
                self.client(daemon).join(LINE, LINE.zeros(), rank=0)
            self.assertEqual(self.client(self.daemon(world_size=2)).join(LINE, LINE.zeros()).world_size, 2)

    def test_answers_show_what_they_hold(self):
        client = self.joined(self.daemon())
        for value, words in ((client.info, "JoinInfo(rank=0, world_size=1, policy='hogwild', "), (client.pull(LINE.zeros()), "PullInfo(versions=[0"),
                             (client.push(LINE.zeros()), "PushInfo(outcome='applied', staleness=0, versions=[1"),
                             (client.take_samples(1, 3, 1), "AssignedSamples(what='range', epoch=0, begin=0, count=1)"), (client, "<psd.Client of "),
                             (client.rows(), "<psd.Rows of 0 rows>"), (client.info.model, "ModelSpec(name='line', shapes={'weight': (1,)"),
                             (client.partial_push(LINE.zeros()), "<psd.PartialPush, not finished>")):
            self.assertTrue(repr(value).startswith(words), repr(value))

    def test_events_go_to_the_log(self):
        address = self.unix_address()
        client = self.joined(self.daemon(listen=(address,)), retry_timeout=0.3)
        with self.assertLogs("psd", logging.WARNING) as logs:
            self.processes[-1].kill()
            with self.assertRaises(psd.Unavailable) as gone:
                client.push(LINE.zeros())  # a pull needs no daemon if its memory is shared
        self.assertTrue(gone.exception.retryable)
        self.assertIn("trying again", logs.output[0])


if __name__ == "__main__":
    processes.main()
