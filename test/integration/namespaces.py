"""Network namespaces for tests: places that reach each other by links that a test makes, shapes and cuts. For root."""

import os
import shutil
import subprocess

import processes


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=processes.WAIT_S, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def name(place):
    """The namespace of a place; this process's tests share the places."""
    return f"psd-{os.getpid()}-{place}"


def within(place):
    """What goes before a command to run it there."""
    return ["ip", "netns", "exec", name(place)]


def make(place):
    run("ip", "netns", "add", name(place))
    run("ip", "-n", name(place), "link", "set", "lo", "up")


def remove(places):
    for place in places:
        subprocess.run(["ip", "netns", "del", name(place)], capture_output=True, check=False)


def reason_to_skip(*programs):
    """Why this system cannot run such a test; None where it can. `programs`: (name, Debian package) of what it needs besides ip."""
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
        return f"this system lets nobody make network namespaces: {why}"
    finally:
        remove(["try"])
    return None
