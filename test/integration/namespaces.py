"""Network namespaces for tests: places connected by links that a test makes, shapes and cuts. Needs root."""

import os
import shutil
import subprocess

WAIT_S = 60  # for one of these commands


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def name(place):
    """The namespace of a place; this process's tests share the places."""
    return f"psd-{os.getpid()}-{place}"


def within(place):
    """The prefix that runs a command in that place."""
    return ["ip", "netns", "exec", name(place)]


def make(place):
    run("ip", "netns", "add", name(place))
    run("ip", "-n", name(place), "link", "set", "lo", "up")


def remove(places):
    for place in places:
        subprocess.run(["ip", "netns", "del", name(place)], capture_output=True, check=False)


class Network:
    """A namespace for each place, all on one bridge. `places`: their addresses, in a /24 network."""

    def __init__(self, places):
        self.places = places
        make("hub")
        hub = name("hub")
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        for place, address in places.items():
            make(place)
            there = name(place)
            run("ip", "-n", there, "link", "add", "net0", "type", "veth", "peer", "name", f"to-{place}", "netns", hub)
            run("ip", "-n", hub, "link", "set", f"to-{place}", "master", "bridge", "up")
            run("ip", "-n", there, "addr", "add", f"{address}/24", "dev", "net0")
            run("ip", "-n", there, "link", "set", "net0", "up")
            self.restore(place)

    def cut(self, sender, receiver):
        """Drops everything that `sender` sends to `receiver`."""
        run(*within(sender), "nft", "add", "rule", "inet", "psd", "out", "ip", "daddr", self.places[receiver], "drop")

    def part(self, one, other):
        """Cuts both directions."""
        self.cut(one, other)
        self.cut(other, one)

    def restore(self, *senders):
        """Restores everything that these places send."""
        for sender in senders or self.places:
            run(*within(sender), "nft", "add table inet psd; flush table inet psd; "
                "add chain inet psd out { type filter hook output priority 0; }")

    def close(self):
        remove((*self.places, "hub"))


def reason_to_skip(*programs):
    """The reason why this system cannot run such a test; None if it can. `programs`: (name, Debian package) needed
    besides ip."""
    if os.getuid() != 0:
        return "needs root"
    missing = [f"{program} (Debian: {package})" for program, package in (("ip", "iproute2"), *programs) if not shutil.which(program)]
    if missing:
        return f"not installed: {', '.join(missing)}"
    try:
        make("try")
        if shutil.which("nft"):
            run(*within("try"), "nft", "add", "table", "inet", "psd")
    except AssertionError as why:
        return f"this system does not allow network namespaces: {why}"
    finally:
        remove(["try"])
    return None
