"""The simulated machine of a schedule's programs: its disk fails and its clock jumps on request.

The programs are started with fault_preload.cc; this class writes its control file.
"""

import errno
import mmap
import os
import struct

PRELOAD = os.environ.get("FAULT_PRELOAD", "")
WRITE, DATA_SYNC, SYNC, CREATE, RENAME, REMOVE, MAKE_FOLDER, TRUNCATE = (1 << bit for bit in range(8))
OPEN, READ, LIST, LOOK = (1 << bit for bit in range(8, 12))
EVERYTHING = 255  # every call that writes
READING = OPEN | READ | LIST | LOOK
# Calls that a daemon survives at its start: its log is broken from the first update.
APPENDING = WRITE | DATA_SYNC

FAULTS = struct.Struct("<IiIIqqq")  # calls, error, shorten, ms of a sync, turn, first, last
CLOCK = struct.Struct("<q")
COUNTS = struct.Struct("<QQ")  # failed calls, shifted times
FOREVER = 1 << 62


class Machine:
    """`folder`: where writing or reading files fails when the disk fails."""

    def __init__(self, control, folder):
        control.write_bytes(bytes(FAULTS.size + CLOCK.size + COUNTS.size))
        with open(control, "r+b") as file:
            self.control = mmap.mmap(file.fileno(), 0)
        self.calls = 0
        self.environment = {"LD_PRELOAD": PRELOAD, "FAULT_PRELOAD_CONTROL": str(control),
                            "FAULT_PRELOAD_FOLDER": str(folder)} if PRELOAD else {}

    def close(self):
        self.control.close()

    def break_disk(self, random):
        """From now on some kinds of calls fail: all of them, or a few after some that succeed. Returns a description."""
        calls = random.choice([EVERYTHING, EVERYTHING, APPENDING, WRITE, DATA_SYNC, SYNC, CREATE, RENAME, MAKE_FOLDER,
                               DATA_SYNC | SYNC, CREATE | MAKE_FOLDER, RENAME | REMOVE])
        first = random.choice([0, 0, random.randint(1, 30)])
        last = first + random.choice([FOREVER, FOREVER, random.randint(1, 4)])
        return self.fail(calls, first, last, random.choice([errno.ENOSPC, errno.EIO, errno.EROFS]), random.randint(0, 1))

    def break_reading(self, random):
        """The same for calls that read: one, a few or all of them."""
        calls = random.choice([READING, READING, OPEN, READ, LIST, LOOK])
        first = random.choice([0, random.randint(1, 10), random.randint(1, 30), random.randint(1, 100)])
        return self.fail(calls, first, first + random.choice([1, random.randint(2, 5), FOREVER]), errno.EIO, 0)

    def fail(self, calls, first, last, error, shorten):
        self.repair_disk()
        self.calls = calls
        FAULTS.pack_into(self.control, 0, 0, error, shorten, 0, 0, first, last)
        struct.pack_into("<I", self.control, 0, self.calls)  # last, when the rest is in place
        return f"calls {self.calls}: {errno.errorcode[error]}, shorten {shorten}, {first} to {'the end' if last >= FOREVER else last}"

    def slow_down(self, sync_ms):
        """Added duration of each sync, in ms."""
        struct.pack_into("<I", self.control, 12, sync_ms)

    def repair_disk(self):
        self.calls = 0
        struct.pack_into("<I", self.control, 0, 0)

    def shift_clock(self, seconds):
        CLOCK.pack_into(self.control, FAULTS.size, seconds)

    @property
    def failed(self):
        """Number of failed calls so far."""
        return COUNTS.unpack_from(self.control, FAULTS.size + CLOCK.size)[0]

    @property
    def shifted(self):
        return COUNTS.unpack_from(self.control, FAULTS.size + CLOCK.size)[1]
