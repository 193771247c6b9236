"""A primary and a standby with a real etcd, and counting trainers."""

import counting
import etcd
import processes

# Longer than a busy machine delays a process: only an injected fault causes a takeover or drops the standby.
PATIENT = {"silence_ms": 1000, "alone_ms": 2000}


class CountingPairs(counting.CountingTest):
    def setUp(self):
        super().setUp()
        self.etcd = etcd.Etcd(self)

    def one(self, listen=f"tcp://{processes.LOOPBACK}:0", policy="locked", optimizer=counting.SGD, replication=None, shards=3, **settings):
        engine = {"type": "etcd", "endpoints": self.etcd.endpoints, "prefix": "/psd/test"}
        return self.daemon(listen=(listen,), policy=policy, optimizer=optimizer, engine=engine, replication={**PATIENT, **(replication or {})},
                           shards=shards, **settings)

    def pair(self, **settings):
        """A primary and a daemon that becomes its standby."""
        primary = self.one(**settings)
        primary.until_status("it is the primary", lambda status: status["replica_set"]["role"] == "primary")
        return primary, self.one(**settings)

    def counting(self, daemons, rank=0, world_size=1, **more):
        return self.count(",".join(daemon.address for daemon in daemons), rank, world_size, **more)

    def until_primary(self, daemon, epoch):
        daemon.until_status(f"it is the primary of epoch {epoch}",
                            lambda status: status["replica_set"]["role"] == "primary" and status["replica_set"]["term"] == epoch)

    def until_without_standby(self, primary):
        primary.until_status("it is alone", lambda status: status["replica_set"]["standby"] == status["replica_set"]["follower"] == "")

    def restarted(self, dead, **settings):
        """A new daemon at the addresses of a dead one."""
        return self.one(listen=dead.address, **settings)

    def killed_repeatedly(self, primary, standby, times, **settings):
        """Kills the primary `times` times, restarting each dead daemon as the standby; returns the last primary."""
        for kill in range(times):
            primary.until_in_sync()
            self.until_more("before the primary is killed", 20)
            primary.kill()
            self.until_primary(standby, kill + 2)
            self.until_more("by its standby", 20)
            primary, standby = standby, self.restarted(primary, **settings)
        return primary

    def tables(self, daemon):
        """The rows of each table as in an exported file, from a checkpoint that the daemon takes now."""
        done = self.psd("checkpoint", "--server", daemon.address)
        self.assertEqual(done.returncode, 0, done.stderr)
        tables = {}
        for table in daemon.status()["tables"]:
            file = self.folder / f"{daemon.name}-{table['name']}"
            exported = self.psd("export", done.stdout.strip(), "--table", table["name"], "--to", file)
            self.assertEqual(exported.returncode, 0, exported.stderr)
            tables[table["name"]] = file.read_bytes()
        return tables
