"""Ctrl-C during a blocking call of the Python package."""

import os
import signal
import sys
import threading
import time

CALL_S_MAX = 5  # the call alone would take 10 s, a lease


def check(test, what, call, close):
    """A Ctrl-C ends `call`, which blocks. Prints the time that this took, including `close`."""
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
    test.assertLess(ended, CALL_S_MAX, what)
