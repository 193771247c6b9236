"""The examples of configs/launch: jobs of a real Slurm, and manifests for Kubernetes checked against its schemas."""

import json
import os
import pathlib
import random
import re
import shutil
import socket
import ssl
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

import certificates
import etcd
import processes

LAUNCH = processes.REPO / "configs/launch"
NODES = 3
MANIFESTS = {"kubernetes.yaml": 1, "kubernetes_standbys.yaml": 2}  # and the number of daemons that serve each partition
# Debian installs the daemons in folders that may not be in PATH.
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
MISSING = [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if not shutil.which(name, path=PATH)]
CONTAINERFILE = (processes.REPO / "configs/container/Containerfile").read_text(encoding="utf-8")


def imports(modules):
    return subprocess.run([sys.executable, "-c", f"import {modules}"], capture_output=True, check=False).returncode == 0


HAS_VALIDATE = imports("kubernetes_validate, yaml")
HAS_PSD = HAS_VALIDATE and imports("psd.torch")


def free_ports(count):
    """Consecutive ports that are free now, below those that the kernel assigns dynamically."""
    below = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(min(10000, below // 2), below - count)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


@unittest.skipIf(MISSING, f"Slurm is not installed (Debian: slurm-wlm, munge): {', '.join(MISSING)}")
@unittest.skipIf(os.getuid() != 0, "Slurm's daemons are started by root")
class SlurmTest(processes.ProcessTest):
    def setUp(self):
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"),
                            "PATH": f"{pathlib.Path(processes.PSD).parent}:{PATH}"}
        self.slurm_port = free_ports(3 * NODES + 1)
        self.psd_port = self.slurm_port + NODES + 1
        self.start_munge()
        self.start_slurm()
        self.addCleanup(self.end_jobs)

    def start_munge(self):
        (self.folder / "munge").mkdir(mode=0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.folder.chmod(0o755)  # munged's clients look up the socket
        (self.folder / "munge").chmod(0o711)
        munge = self.folder / "munge"
        self.background("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket", f"--pid-file={munge}/pid",
                        f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        processes.until("munged listens", (munge / "socket").exists)

    def start_slurm(self):
        for name in ("state", *(f"spool-n{i}" for i in range(1, NODES + 1))):
            (self.folder / name).mkdir()
        ports, host = self.slurm_port, socket.gethostname().split(".")[0]
        self.write("slurm.conf", f"""
ClusterName=psd
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={self.folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmdSpoolDir={self.folder}/spool-%n
StateSaveLocation={self.folder}/state
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd-%n.log
SlurmctldPort={ports}
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-{NODES}] NodeHostname={host} NodeAddr=127.0.0.1 Port={ports + 1}-{ports + NODES} CPUs=4 RealMemory=500 State=UNKNOWN
PartitionName=main Nodes=n[1-{NODES}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
""")
        self.background("slurmctld", "-D")
        for i in range(1, NODES + 1):
            self.background("slurmd", "-D", "-N", f"n{i}")
        try:
            processes.until("all nodes are idle", lambda: self.slurm("sinfo", "-h", "-o", "%T %D").stdout.split() == ["idle", str(NODES)])
        except AssertionError as error:
            logs = "".join(f"=== {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("slurm*.log")))
            raise AssertionError(f"{error}\n{logs}") from None

    def end_jobs(self):
        """Ends a test's remaining jobs: slurmd, which is still running, ends their processes."""
        self.slurm("scancel", "--full", "--signal=KILL", "--state=RUNNING", "--me")
        self.slurm("scancel", "--me")
        processes.until("no job is left", lambda: not self.slurm("squeue", "-h").stdout.strip())

    def background(self, name, *arguments):
        program = shutil.which(name, path=PATH)
        process = subprocess.Popen([program, *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def slurm(self, *arguments, **environment):
        return subprocess.run(list(map(str, arguments)), env={**self.environment, **environment}, capture_output=True, text=True, check=False,
                              timeout=processes.WAIT_S, cwd=self.folder)

    def submit(self, *arguments, wait=True, **environment):
        """The exit status of sbatch (the job's if it waits for it), the job's folder, and the file of its output."""
        done = self.slurm("sbatch", *(("--wait",) if wait else ()), "--parsable", "--mem=0", LAUNCH / "slurm.sh", *arguments,
                          PSD_PORT=str(self.psd_port), **environment)
        job = done.stdout.split()[0] if done.stdout else done.stderr
        return done.returncode, self.folder / f"psd-{job}", (self.folder / f"slurm-{job}.out")

    def logs(self, folder):
        return {path.name: path.read_text() for path in folder.glob("*.log")}

    def status(self, folder, port):
        """The status of the daemon there; None if it does not answer."""
        done = self.slurm(processes.PSD, "status", "--json", "--here", "--server", f"tcp://127.0.0.1:{port}", "--token-file", folder / "admin.token")
        return json.loads(done.stdout) if done.returncode == 0 else {"replica_set": {}, "trainers": []}

    def test_a_job_of_daemons_and_trainers(self):
        status, folder, out = self.submit("--model", "mlp", "--data", "synthetic:600", "--epochs", 2, "--threads", 1)
        logs = self.logs(folder)
        self.assertEqual(status, 0, out.read_text() + str(logs))
        for i in range(2):
            self.assertIn("all 3 trainers are done", logs[f"psd-{i}.log"])
            self.assertIn("stopped", logs[f"psd-{i}.log"])
        for rank in range(NODES):
            self.assertIn(f"rank {rank} of 3 joined", logs[f"trainer-{rank}.log"])
            self.assertIn("on 2 daemons", logs[f"trainer-{rank}.log"])
        self.assertEqual((folder / "tokens").stat().st_mode & 0o77, 0)

    def until_all_train(self, folder, port):
        """Until each trainer of the daemon there has made some more steps."""
        def steps():
            return {each["rank"]: each["step"] for each in self.status(folder, port)["trainers"]}

        before = processes.until("all trainers are back", lambda: (found := steps()) and len(found) == NODES and found)
        processes.until("all continue", lambda: (now := steps()) and all(now.get(rank, 0) > step + 3 for rank, step in before.items()))

    @unittest.skipUnless(etcd.PROGRAM, "etcd is not installed (Debian: etcd-server)")
    def test_a_primary_whose_step_is_killed_is_replaced_by_its_standby(self):
        member = etcd.Etcd(self)
        _, folder, _ = self.submit("--model", "mlp", "--data", "synthetic:600", "--steps", 10_000_000, "--threads", 1, wait=False,
                                     PSD_ENGINE=member.endpoint)
        job = folder.name.removeprefix("psd-")

        def in_sync(group):
            return group.get("role") == "primary" and group["waits_for_standby"] and group["standby"] == group["follower"] != ""

        # The ports and names of each pair, the primary's first; either daemon may be the primary.
        pairs = []
        for index in range(2):
            places = [(self.psd_port + index, f"psd-{index}"), (self.psd_port + 2 + index, f"psd-{index}-standby")]
            processes.until(f"the pair {index} is in sync", lambda places=places: any(in_sync(self.status(folder, port)["replica_set"]) for port, _ in places))
            pairs.append(sorted(places, key=lambda place: self.status(folder, place[0])["replica_set"]["role"] != "primary"))
        for (_, primary), (port, standby) in pairs:
            steps = dict(line.split()[::-1] for line in self.slurm("squeue", "--steps", "-h", "-o", "%i %j", "--jobs", job).stdout.splitlines())
            killed = self.slurm("scancel", "--signal=KILL", steps[primary])
            self.assertEqual(killed.returncode, 0, killed.stderr)
            processes.until(f"{standby} has taken over", lambda folder=folder, name=standby: "primary of term 2 now" in self.logs(folder)[f"{name}.log"])
            self.until_all_train(folder, port)
        stopped = self.slurm(processes.PSD, "stop", "--discard", "--server", f"tcp://127.0.0.1:{port}", "--token-file", folder / "admin.token")
        if stopped.returncode:  # on a busy machine etcd may not answer in time; the daemons end all the same
            self.assertIn("the engine has not recorded that the run is over", stopped.stderr)
        processes.until("the job has ended", lambda: not self.slurm("squeue", "-h").stdout.strip())
        for rank in range(NODES):
            self.assertIn("back after", self.logs(folder)[f"trainer-{rank}.log"])  # once for both, where processors are busy

    def test_trainers_that_fail_end_the_job(self):
        status, folder, out = self.submit("--model", "nonsense")
        self.assertNotEqual(status, 0)
        self.assertIn("has stopped", out.read_text())
        self.assertRegex((folder / "psd-0.log").read_text(), r"asked by token 'admin' at \S+: psd stop")


# Replaces the commands of a cluster: srun's steps exit as ENDS says, "NAME=STATUS …", and log what SAYS says.
STANDINS = {
    "srun": """name= log=
for word in "$@"; do
  case $word in
    --job-name=*) name=${word#*=} ;;
    --output=*) log=${word#*=} ;;
  esac
done
status=0
for end in $ENDS; do [ "${end%=*}" != "$name" ] || status=${end#*=}; done
[ "$status" -eq 0 ] || echo "$SAYS" >"$log"
exit "$status"
""",
    "scontrol": """if [ "$2" = hostnames ]; then printf 'n1\\nn2\\nn3\\n'; else echo "NodeName=n1 NodeAddr=127.0.0.1 Port=1"; fi
""",
    "psd": "",
}


class SlurmScriptTest(processes.ProcessTest):
    def ended(self, ends, says="killed", engine=True):
        for name, script in STANDINS.items():
            path = self.folder / name
            path.write_text(f"#!/bin/bash\n{script}")
            path.chmod(0o755)
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_ID": "7",
                       "SLURM_SUBMIT_DIR": str(self.folder), "ENDS": ends, "SAYS": says, **({"PSD_ENGINE": "http://etcd:2379"} if engine else {})}
        (self.folder / "psd-7").mkdir(exist_ok=True)
        for name in ("psd-0", "psd-0-standby", "psd-1", "psd-1-standby"):
            (self.folder / "psd-7" / f"{name}.log").write_text("")
        done = subprocess.run([LAUNCH / "slurm.sh", "--steps", "1"], env=environment, capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=processes.WAIT_S)
        self.assertEqual(done.stderr, "")
        return done.returncode

    def test_a_job_fails_where_what_it_was_for_is_lost(self):
        self.assertEqual(self.ended(""), 0)
        self.assertEqual(self.ended("psd-1=1", engine=False), 1)
        for one in ("psd-0=137", "psd-0-standby=137", "psd-0=137 psd-1-standby=137"):
            self.assertEqual(self.ended(one), 0)
        self.assertEqual(self.ended("psd-1=137 psd-1-standby=137"), 137)
        # Its standby has exited with 0 all the same.
        self.assertEqual(self.ended("psd-0=1", "psd: could not save the last checkpoint: No space left on device"), 1)
        self.assertEqual(self.ended("psd-trainer=4"), 4)


@unittest.skipUnless(HAS_VALIDATE, "kubernetes-validate is not installed (scripts/setup --tests brings it)")
class KubernetesTest(processes.ProcessTest):
    def manifests(self, file):
        import yaml
        with open(LAUNCH / file, encoding="utf-8") as manifests:
            return {each["kind"]: each for each in yaml.safe_load_all(manifests)}

    def test_the_manifests_are_right(self):
        import kubernetes_validate
        for file in MANIFESTS:
            for manifest in self.manifests(file).values():
                with self.subTest(file=file, kind=manifest["kind"]):
                    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)

    def containers(self, file):
        return [each for pod in self.pods(file) for each in (*pod.get("initContainers", ()), *pod["containers"])]

    def test_the_images_are_those_of_the_containerfile(self):
        built = dict(re.findall(r"^#   podman build --format docker -t (\S+) --target (\S+) ", CONTAINERFILE, re.MULTILINE))
        self.assertEqual(set(built.values()), set(re.findall(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, re.MULTILINE)))
        for file in MANIFESTS:
            self.assertEqual({each["image"] for each in self.containers(file)}, set(built))
        version = subprocess.run([processes.PSD, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        self.assertEqual({image.partition(":")[2] for image in built}, {version})

    def pods(self, file):
        return [self.manifests(file)[kind]["spec"]["template"]["spec"] for kind in ("StatefulSet", "Job")]

    def test_the_containers_are_confined(self):
        for file in MANIFESTS:
            for pod in self.pods(file):
                self.assertFalse(pod["automountServiceAccountToken"])
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            for container in self.containers(file):
                with self.subTest(file=file, container=container["name"]):
                    self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                                    "capabilities": {"drop": ["ALL"]}})
                    self.assertEqual(set(container["resources"]["requests"]), {"cpu", "memory"})
                    self.assertIn("memory", container["resources"]["limits"])

    def test_what_a_manifest_names_is_in_it(self):
        for file in MANIFESTS:
            manifests = self.manifests(file)
            made = re.findall(r"--from-file=(\S+)", (LAUNCH / file).read_text(encoding="utf-8"))
            service = {port["port"] for port in manifests["Service"]["spec"]["ports"]}
            admitted = {port["port"] for rule in manifests["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]}
            config = json.loads(manifests["ConfigMap"]["data"]["psd.json"])
            listened = {int(address.rpartition(":")[2]) for address in config["listen"] + config["http"]["listen"]}
            self.assertEqual((service, admitted), (listened, listened))
            for pod in self.pods(file):
                volumes = {volume["name"] for volume in pod["volumes"]} | {"saved"}  # claimed by the StatefulSet
                for container in (*pod.get("initContainers", ()), *pod["containers"]):
                    with self.subTest(file=file, container=container["name"]):
                        self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
                        keys = [each["valueFrom"]["secretKeyRef"]["key"] for each in container.get("env", ()) if "valueFrom" in each]
                        self.assertLessEqual(set(keys), set(made))
            [daemon] = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
            self.assertEqual({port["containerPort"] for port in daemon["ports"]}, listened)
            mounts = {mount["mountPath"] for mount in daemon["volumeMounts"]}
            for path in (config["durability"]["path"], config["auth"]["tokens"], *config["tls"].values(), daemon["env"][0]["value"]):
                self.assertTrue(any(path.startswith(mount + "/") for mount in mounts), path)
            for path in config["tls"].values():
                self.assertIn(path.rpartition("/")[2], made)

    def test_prometheus_finds_the_daemons(self):
        [monitor] = self.manifests("kubernetes_monitoring.yaml").values()
        for file in MANIFESTS:
            service = self.manifests(file)["Service"]
            self.assertLessEqual(monitor["spec"]["selector"]["matchLabels"].items(), service["metadata"]["labels"].items())
            [endpoint] = monitor["spec"]["endpoints"]
            self.assertIn(endpoint["port"], [port["name"] for port in service["spec"]["ports"]])
            self.assertIn(f"--from-file={endpoint['authorization']['credentials']['key']} ", (LAUNCH / file).read_text().replace("\n", " "))

    def test_a_daemon_with_the_manifests_configuration_answers_the_probes(self):
        authority = certificates.Authority(self.folder, "ca")
        authority.sign("tls", "psd", "IP:127.0.0.1,DNS:psd-0.psd")
        token = self.make_token("prometheus", "reader")
        for file in MANIFESTS:
            with self.subTest(file):
                manifests = self.manifests(file)
                config = json.loads(manifests["ConfigMap"]["data"]["psd.json"])
                for key in ("daemons", "engine", "replication"):
                    config.pop(key, None)
                config["listen"] = ["tls://127.0.0.1:0"]
                config["http"]["listen"] = ["tls://127.0.0.1:0"]
                config["tls"] = {"certificate": str(self.folder / "tls.pem"), "key": str(self.folder / "tls.key")}
                config["auth"]["tokens"] = str(self.folder / "tokens")
                config["durability"]["path"] = str(self.folder / file / "saved")
                daemon = processes.Daemon(self.folder, self._name("psd"), ["--config", self.write("psd.json", json.dumps(config))])
                self.processes.append(daemon)
                [container] = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"]
                context = ssl.create_default_context(cafile=authority.path)

                def status(path, daemon=daemon, context=context, **headers):
                    try:
                        request = urllib.request.Request(daemon.page + path, headers=headers)
                        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
                            return answer.status
                    except urllib.error.HTTPError as error:
                        return error.code

                answers = {kind: status(container[kind]["httpGet"]["path"]) for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
                self.assertEqual(answers, {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 503})  # there is no model yet
                self.assertEqual((status("/metrics"), status("/metrics", Authorization=f"Bearer {token}")), (401, 200))
                self.assert_stops(daemon)

    @unittest.skipUnless(HAS_PSD, "Python's torch or this build's package psd is missing")
    def test_the_job_trains(self):
        """With the manifest's program, command and configuration; only the addresses differ."""
        for file in MANIFESTS:
            with self.subTest(file):
                daemon = self.daemon(policy="locked")
                manifests = self.manifests(file)
                program = self.write("train.py", manifests["ConfigMap"]["data"]["train.py"].replace("range(1000)", "range(100)"))
                job = manifests["Job"]["spec"]["template"]["spec"]
                [container] = job["containers"]
                mount = next(each for each in container["volumeMounts"] if each["name"] == "program")
                shell, flag, command = container["command"]
                command = command.replace(f"{mount['mountPath']}/{program.name}", str(program)).replace("python3", sys.executable)
                world = next(each["value"] for each in container["env"] if each["name"] == "WORLD_SIZE")
                trainers = [processes.Process(self.folder, f"trainer-{index}", [shell, flag, command],
                                              {"JOB_COMPLETION_INDEX": str(index), "WORLD_SIZE": world, "PSD_SERVER": daemon.address})
                            for index in range(int(world))]
                self.processes += trainers
                for index, trainer in enumerate(trainers):
                    self.assert_ends(trainer)
                    self.assertIn(f"rank {index}: step 100, loss ", trainer.out)

    def test_the_daemons_configurations_are_right(self):
        """As each pod's shell would generate them from the name that Kubernetes gives it."""
        for file, daemons_of_each in MANIFESTS.items():
            manifests = self.manifests(file)
            config = self.write("psd.json", manifests["ConfigMap"]["data"]["psd.json"])
            replicas = manifests["StatefulSet"]["spec"]["replicas"]
            entries = json.loads(config.read_text())["daemons"]
            self.assertEqual([len(entry.split(",")) for entry in entries], replicas // daemons_of_each * [daemons_of_each])
            container = manifests["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
            port = next(each["containerPort"] for each in container["ports"] if each["name"] == "psd")
            shell, flag, command = container["command"]
            command = command.replace("exec psd --config /etc/psd/psd.json", f"exec {processes.PSD} check {config}")
            self.assertIn("psd check ", command)
            for ordinal in range(replicas):
                done = subprocess.run([shell, flag, command], capture_output=True, text=True, check=False, timeout=processes.WAIT_S,
                                      env={**os.environ, "HOSTNAME": f"psd-{ordinal}"})
                self.assertEqual(done.returncode, 0, done.stderr)
                made = json.loads(done.stdout)
                self.assertEqual(made["index"], ordinal // daemons_of_each)
                self.assertIn(f"tls://psd-{ordinal}.psd:{port}", entries[made["index"]].split(","))
                if daemons_of_each > 1:
                    self.assertEqual(made["replication"]["addresses"], [f"tls://psd-{ordinal}.psd:{port}"])
                    self.assertEqual(made["engine"]["prefix"], f"/psd/train/{made['index']}")


if __name__ == "__main__":
    processes.main()
