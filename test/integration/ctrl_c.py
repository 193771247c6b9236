"""Ctrl-C while a call of the Python package waits."""

import os
import signal
import sys
import threading
import time

CALL_S_MAX = 1.5  # the call itself would take 10 s, a lease, and a goodbye that nobody answers 2 s


def check(test, what, call, close):
    """A Ctrl-C ends `call`, which waits, and then close() waits for little. Prints how long that took."""
    sent = []

    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.2, interrupt)
    timer.start()
    try:
        with test.assertRaises(KeyboardInterrupt, msg=what):
            call()
        ended = time.monotonic() - sent[0]
        close()
        closed = time.monotonic() - sent[0]
    finally:
        timer.cancel()
        timer.join()
    print(f"Ctrl-C during {what}: {ended:.2f} s, with close() {closed:.2f} s", file=sys.stderr)
    test.assertLess(closed, CALL_S_MAX, what)
