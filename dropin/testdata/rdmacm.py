# Runs each test of rdma-core's test_rdmacm.py as two programs. The suite itself opens the device before it forks its two sides, which a software NIC
# does not survive. PYTHONPATH has the suite's folder and the one above. Both sides use the address in IBVERBX_ADDR.
import importlib
import multiprocessing as mp
import os
import unittest

PATIENCE, SHORT = 60, 5  # seconds for a test to end, and for one that must hang


def load():
    importlib.import_module("args_parser").parser.parse_args()
    return importlib.import_module("tests.test_rdmacm")


def play(name, passive, syncer, notifier):
    """Runs one side of a test."""
    tests = load()

    def find_address(self, dev, port, idx):
        self.args.append([dev, port, idx, os.environ["IBVERBX_ADDR"], None])

    def run_side(self, connection_resources, test_flow, bad_flow=False, **kwargs):
        self.syncer, self.notifier = syncer, notifier
        test_flow(connection_resources=connection_resources, passive=passive, **kwargs)

    tests.RDMATestCase._get_ip_mac = find_address
    tests.RDMACMBaseTest.two_nodes_rdmacm_traffic = run_side
    case = tests.CMTestCase(name)
    case.setUp()
    getattr(case, name)()
    case.tearDown()


def run(name):
    """Reports how a test ends."""
    context = mp.get_context("forkserver")  # that process loads the suite, and opens no device
    context.set_forkserver_preload(["tests.test_rdmacm"])
    syncer, notifier = context.Barrier(2, timeout=PATIENCE), context.Queue()
    sides = [context.Process(target=play, args=(name, passive, syncer, notifier)) for passive in (True, False)]
    for side in sides:
        side.start()
    endless = "leave" in name  # it receives from a group that it has left
    for side in sides:
        side.join(SHORT if endless else PATIENCE)
    codes = [side.exitcode for side in sides]
    for side in sides:
        side.kill()
        side.join()
    return codes[0] is None if endless else codes == [0, 0]


if __name__ == "__main__":
    for name in unittest.TestLoader().getTestCaseNames(load().CMTestCase):
        print(name, "... ok" if run(name) else "... FAILED", flush=True)
