"""A session belongs to its caller, requests of operators are logged with their names, and readers see neither secrets
nor events."""

import asyncio
import http.client
import importlib.util
import json
import re
import unittest
import urllib.parse

import processes

HAVE_CAPNP = importlib.util.find_spec("capnp") is not None
if HAVE_CAPNP:
    import capnp
    from second_client import Refused, SecondClient, checked

TENSORS = {"w": [0.0] * 4}
ONES = {"w": [-1.0] * 4}
OPS = r"token 'ops' at 127\.0\.0\.1:[0-9]+"


@unittest.skipUnless(HAVE_CAPNP, "no pycapnp (scripts/setup --tests brings it)")
class AccessTest(processes.ProcessTest):
    def setUp(self):
        roles = {"a": "trainer", "b": "trainer", "eve": "reader", "ops": "admin"}
        self.tokens = {name: self.make_token(name, role) for name, role in roles.items()}

    def token_daemon(self, *arguments, **settings):
        """Its first address is for the daemon's own user, its second requires tokens."""
        daemon = self.daemon(*arguments, listen=(self.unix_address(), "tcp://127.0.0.1:0"), policy="locked",
                             optimizer='{"type":"sgd","lr":1}', auth=json.dumps({"tokens": str(self.folder / "tokens")}), **settings)
        daemon.remote = daemon.addresses[1]
        return daemon

    def client(self, daemon, token, **more):
        return SecondClient(daemon.remote, TENSORS, token=self.tokens[token], **more)

    def psd(self, daemon, token, *arguments):
        """The output of a command that must succeed."""
        process = self.start_psd(*arguments, "--server", daemon.remote, environment={"PSD_TOKEN": self.tokens[token]})
        self.assert_ends(process)
        return process.out

    def events(self, daemon):
        return [json.loads(line) for line in self.psd(daemon, "ops", "events", "--json").splitlines()]

    def http(self, daemon, token, method, path, body=None):
        page = urllib.parse.urlsplit(daemon.page)
        connection = http.client.HTTPConnection(page.hostname, page.port, timeout=60)
        self.addCleanup(connection.close)
        headers = {"Authorization": f"Bearer {self.tokens[token]}", "Content-Type": "application/json"}
        connection.request(method, path, body, headers)
        return connection.getresponse()

    async def refused(self, work, code):
        with self.assertRaises(Refused) as caught:
            await work
        self.assertEqual(caught.exception.code, code, caught.exception)
        return str(caught.exception)

    async def attach(self, client, rank, incarnation, attachment):
        _, login = await client.log_in()
        return checked(await login.training.attach(rank, incarnation, attachment))

    def test_a_session_is_of_the_token_that_began_it(self):
        daemon = self.token_daemon("--http", "tcp://127.0.0.1:0", membership__grace_ms=0)

        async def steal():
            a, b = self.client(daemon, "a"), self.client(daemon, "b")
            await a.pull()
            await a.push(ONES)
            secrets = (f"{a.incarnation:x}", f"{a.incarnation:d}")
            shown = [self.psd(daemon, "eve", "status", "--json"), self.http(daemon, "eve", "GET", "/api/status.json").read().decode(),
                     self.http(daemon, "eve", "GET", "/metrics").read().decode(), json.dumps(self.events(daemon))]
            for text in shown:
                for secret in secrets:
                    self.assertNotIn(secret, text)
            self.assertRegex(json.loads(shown[0])["trainers"][0]["process"], "^[0-9a-f]{8}$")

            b.incarnation, b.step = a.incarnation, a.step
            self.assertIn("belongs to another caller", await self.refused(b.join(), "forbidden"))
            attached = self.attach(b, 0, a.incarnation, a.connection.attachment)
            self.assertIn("belongs to another caller", await self.refused(attached, "forbidden"))
            await self.attach(a, 0, a.incarnation, a.connection.attachment)  # its own token may
            told = [event for event in self.events(daemon) if event["kind"] == "refused"]
            self.assertEqual(len(told), 2)
            for event in told:
                self.assertRegex(event["by"], r"^127\.0\.0\.1:[0-9]+ \(second client\) as 'b'$")
            self.assertEqual(len(re.findall(r"refused .*belongs to another caller.*; asked by .* as 'b'", daemon.err)), 2)

            self.assertEqual(await a.push(ONES), {0: "applied"})  # it noticed nothing
            first, a.connection.rpc = a.connection.rpc, None
            await a.join()
            self.assertTrue(a.connection.resumed)
            await a.pull()
            self.assertEqual(list(a.tensor("w")), [2] * 4)

            first.close()
            a.connection.rpc.close()
            daemon.until_status("a counts as lost", lambda status: status["trainers_lost"] == 1)
            await self.refused(b.join(), "forbidden")  # also for the lost process
            await a.join()
            self.assertFalse(a.connection.resumed)

        asyncio.run(capnp.run(steal()))

    def test_without_tokens_a_trainer_may_come_back_at_another_address(self):
        daemon = self.daemon(listen=(self.unix_address(), "tcp://127.0.0.1:0"), policy="locked")

        async def come_back():
            client = SecondClient(daemon.addresses[0], TENSORS)
            for address in (daemon.addresses[0], daemon.addresses[1], daemon.addresses[0]):
                client.address = address
                await client.join()
                self.assertEqual(client.connection.resumed, client.joins > 1)

        asyncio.run(capnp.run(come_back()))

    def test_a_bridges_place_is_its_own(self):
        daemon = self.token_daemon()

        async def join(token, incarnation):
            client = self.client(daemon, token)
            _, login = await client.log_in()
            return checked(await login.training.join(model=client.model(), host="h", pid=1, incarnation=incarnation, bridges=True)), login

        async def bridges():
            await self.client(daemon, "a").join()
            kept = await join("a", 77)
            self.assertRegex(daemon.status()["bridge"]["process"], "^[0-9a-f]{8}$")
            await self.refused(join("b", 77), "forbidden")
            again, login = await join("a", 77)
            self.assertTrue(again.joined.resumed)
            del kept, login

        asyncio.run(capnp.run(bridges()))

    def test_the_caller_is_recorded(self):
        config = self.write("psd.json", '{"optimizer": {"type": "sgd", "lr": 1}}')
        daemon = self.token_daemon("--config", str(config), "--http", "tcp://127.0.0.1:0",
                                    durability=json.dumps({"type": "checkpoint", "path": str(self.folder / "saved")}))

        async def train():
            client = self.client(daemon, "a")
            await client.pull()
            await client.push(ONES)
            self.psd(daemon, "ops", "set", "optimizer.lr=0.5")
            self.psd(daemon, "ops", "reload")
            self.psd(daemon, "ops", "checkpoint")
            self.psd(daemon, "ops", "trainer", "remove", "0")
            client.step += 1
            why = await self.refused(client.push_once(client.flat(ONES), 1, {}), "sessionEnded")
            self.assertRegex(why, f"removed by an operator \\({OPS}\\)")
            self.assertRegex(await self.refused(client.join(), "rankTaken"), f"removed by an operator \\({OPS}\\)")

        asyncio.run(capnp.run(train()))
        self.assertEqual(self.http(daemon, "ops", "POST", "/api/checkpoint", "{}").status, 200)
        events = self.events(daemon)
        asked = [(event["kind"], event["text"]) for event in events if re.fullmatch(OPS, event["by"])]
        self.assertEqual([kind for kind, _ in asked], ["reload", "reload", "asked", "removed"])
        for _, text in asked:
            self.assertRegex(text, OPS)
        over_http = [event for event in events if re.fullmatch(OPS + " over HTTP", event["by"])]
        self.assertEqual([event["kind"] for event in over_http], ["asked"])
        for what in ("reloaded the configuration: .*", "a checkpoint, ", "rank 0 .* is lost after 1 steps: removed by an operator .",
                     "checkpoint, asked by .* over HTTP"):
            self.assertRegex(daemon.err, what if what.endswith("HTTP") else f"{what}(asked by )?{OPS}")
        refused = self.start_psd("set", "shards=x", "--server", daemon.remote, environment={"PSD_TOKEN": self.tokens["ops"]})
        self.assertNotEqual(refused.wait(), 0)
        self.psd(daemon, "ops", "stop")
        self.assert_ends(daemon)
        self.assertRegex(daemon.err, f"asked by {OPS}")

    def test_events_are_for_administrators(self):
        daemon = self.token_daemon("--http", "tcp://127.0.0.1:0")
        self.assert_fails(self.start_psd("events", "--server", daemon.remote, environment={"PSD_TOKEN": self.tokens["eve"]}),
                          "this requires role admin; 'eve' has role reader")
        (self.folder / "tokens").write_text("".join(line for line in (self.folder / "tokens").read_text().splitlines(True)
                                                    if not line.startswith("b ")))
        self.psd(daemon, "ops", "reload")

        def followed(token):
            answer = self.http(daemon, token, "GET", "/api/events")
            while not (line := answer.readline()).startswith(b"data: "):
                self.assertNotEqual(line, b"")
            return json.loads(line.removeprefix(b"data: "))

        for token in ("eve", "a"):
            document = followed(token)
            self.assertNotIn("events", document)
            self.assertNotIn("token 'b'", json.dumps(document))
            self.assertEqual(document["status"]["pid"], daemon.pid)
        self.assertIn("token 'b': trainer -> none", json.dumps(followed("ops")["events"]))


if __name__ == "__main__":
    processes.main()
