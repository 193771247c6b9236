"""Daemon and trainers as processes that are killed, stopped, replaced and cut off by seeded schedules, on machines
whose disks fail and whose clocks jump.

Every gradient is -1 and the learning rate 1, so each parameter counts the pushes or rounds that are in it, and a
shard's version gives the expected count. With a log the model holds all answered pushes; with checkpoints, and while
the log cannot be written, at least those in the latest checkpoint. FAULT_PROCESS_SCHEDULES and FAULT_PROCESS_SEED set
the number of schedules and the first seed; several run at a time.
"""

import collections
import concurrent.futures as futures
import os
import shutil
import sys

import processes
import schedule

SCHEDULES = int(os.environ.get("FAULT_PROCESS_SCHEDULES", "200" if processes.LONG else "60"))
FIRST_SEED = int(os.environ.get("FAULT_PROCESS_SEED", "1"))
# Most of a schedule is waiting: for processes to start, trainers to reconnect, leases to expire.
AT_ONCE = 4
# From this number of schedules on, each kind of event occurs during the work.
SCHEDULES_OF_ALL_KINDS = 100


class Place(processes.ProcessTest):
    """The folder and processes of one schedule."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.processes = folder, []
        folder.mkdir()

    def name(self, kind):
        return f"{kind}-{len(self.processes)}"


class Faults(processes.ProcessTest):
    def run_schedule(self, seed):
        """Runs the schedule, and returns it."""
        place = Place(self.folder / str(seed))
        run = schedule.Schedule(place, seed)
        try:
            run.run()
            place.tearDown()
        except BaseException:
            print("\n".join([str(run), *(process.report() for process in place.processes)]), file=sys.stderr)
            raise
        finally:
            for process in place.processes:
                process.kill()
        shutil.rmtree(place.folder)
        return run

    def test_schedules(self):
        with futures.ThreadPoolExecutor(AT_ONCE) as pool:
            running = [pool.submit(self.run_schedule, seed) for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES)]
            done, _ = futures.wait(running, return_when=futures.FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)
        runs = [each.result() for each in done]
        hits = sum((run.hits for run in runs), collections.Counter())
        print(f"in the midst of the work: {dict(sorted(hits.items()))}", file=sys.stderr)
        if SCHEDULES >= SCHEDULES_OF_ALL_KINDS:
            events = sum(run.plan["events"] for run in runs)
            self.assertGreater(hits.total(), events // 2, "most of what happened, happened when all was done")
            kinds = {*schedule.EVENTS, *schedule.EVENTS_BESIDE}
            self.assertEqual(kinds - {*hits.keys()}, set(), "it never happened in the midst of the work")


if __name__ == "__main__":
    processes.main()
