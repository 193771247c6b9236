"""psd.Client with arrays of a CUDA device, emulated by test/cuda/emulated: in this process, and in daemons."""

import ctypes
import enum
import gc
import itertools
import os
import signal
import threading
import unittest.mock
import weakref

import numpy as np
import processes

import psd

cuda = ctypes.CDLL(os.environ["PSD_EMULATED_CUDART"])  # loaded by this module alone: psd passes it to its library
MODEL = psd.Model("net", {"w": (3000,), "b": (77,)})
SGD = '{"type":"sgd","lr":1.0}'
HAND_OVER = psd._cuda.export_dlpack
CUDA = enum.IntEnum("DLDeviceType", {"kDLCUDA": 2}).kDLCUDA  # as in PyTorch
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class DLManagedTensor(ctypes.Structure):
    pass


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManagedTensor))
DLManagedTensor._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]
handed = {}  # by number: objects that a capsule's owner has not released yet
numbers = itertools.count(1)
DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR)(("PyCapsule_New", ctypes.pythonapi))
tensor_in = ctypes.PYFUNCTYPE(ctypes.POINTER(DLManagedTensor), ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


@DELETER
def release_tensor(tensor):
    del handed[tensor.contents.context]


@DESTRUCTOR
def on_unused_capsule(capsule):
    release_tensor(tensor_in(capsule, b"dltensor"))


def call(name, *arguments):
    error = getattr(cuda, name)(*arguments)
    if error != 0:
        raise AssertionError(f"{name}: error {error}")


def made(name, *arguments):
    handle = ctypes.c_void_p()
    call(name, ctypes.byref(handle), *arguments)
    return handle


class DeviceArray:
    """float32 values on a device, filled by a stream of their own, as in a library of such arrays."""

    def __init__(self, values, device=0, *, offset=0, bits=32, shape=None, strides=None):
        values = np.ascontiguousarray(values, np.float32)
        self.size, self.device, self.dtype = values.size, f"cuda:{device}", f"float{bits}"
        self.shape = values.shape if shape is None else shape
        self._index, self._offset, self._bits, self._strides = device, offset, bits, strides
        call("cudaSetDevice", device)
        self._memory = made("cudaMalloc", ctypes.c_size_t(values.nbytes + offset or 1))
        self.stream, self._event = made("cudaStreamCreateWithFlags", 1), made("cudaEventCreate")
        call("cudaSetDevice", 0)
        if device == 0:
            self.set(values)

    def set(self, values):
        """Returns before the values are written."""
        self._copy(self._memory.value + self._offset, np.ascontiguousarray(values, np.float32).ctypes.data)

    def values(self):
        values = np.empty(self.size, np.float32)
        self._copy(values.ctypes.data, self._memory.value + self._offset)
        call("cudaStreamSynchronize", self.stream)
        return values

    def _copy(self, to, source):
        call("cudaMemcpyAsync", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(4 * self.size), 4, self.stream)

    def __dlpack_device__(self):
        return CUDA, self._index

    def __dlpack__(self, stream=None):
        call("cudaEventRecord", self._event, self.stream)
        call("cudaStreamWaitEvent", ctypes.c_void_p(stream), self._event, 0)
        number, dims = next(numbers), len(self.shape)
        shape = (ctypes.c_int64 * dims)(*self.shape)
        strides = (ctypes.c_int64 * dims)(*self._strides) if self._strides else None
        tensor = DLManagedTensor(DLTensor(self._memory.value, CUDA, self._index, dims, 2, self._bits, 1, shape, strides, self._offset),
                                 number, release_tensor)
        handed[number] = self, tensor, shape, strides
        return new_capsule(ctypes.addressof(tensor), b"dltensor", on_unused_capsule)


class Stopped(Exception):
    """Raised by a signal."""


def filled(value):
    values = MODEL.zeros()
    for view in MODEL.views(values).values():
        view[:] = value
    return values


class PythonDevice(processes.ProcessTest):
    def device_daemon(self, **settings):
        """A daemon whose parameters are on a device, ready at a Unix socket."""
        return self.daemon(**{"listen": (self.unix_address(),), "policy": "locked", "optimizer": SGD, "device": "cuda:0",
                              "limits__slice_bytes": 4096, **settings})

    def joined(self, daemon, initial=None, **options):
        client = psd.Client(daemon.address, device="cuda:0", **options)
        self.addCleanup(client.close)
        client.join(MODEL, DeviceArray(filled(2)) if initial is None else initial, 0, 1)
        return client

    def assert_holds(self, array, expected):
        np.testing.assert_array_equal(array.values(), expected)

    def assert_trains(self, client):
        """Pushes and pulls of each kind, starting at 2, each of a gradient of −1 at a learning rate of 1."""
        values, gradient = DeviceArray(filled(0)), DeviceArray(filled(0))
        client.pull(values)
        self.assert_holds(values, filled(2))
        for expected in (3, 4):
            gradient.set(filled(-1))
            self.assertEqual(client.push(gradient).outcome, "applied")
            client.pull(values)
            self.assert_holds(values, filled(expected))
        push = client.partial_push(gradient)
        for begin in range(0, MODEL.size, 16):
            push.ready(begin, 16)
        push.finish().wait()
        client.begin_pull(values).wait()
        self.assert_holds(values, filled(5))

    def test_values_go_through_the_daemons_memory(self):
        for policy in ("locked", "hogwild", "sync"):
            with self.subTest(policy=policy):
                client = self.joined(self.device_daemon(listen=(self.unix_address(f"{policy}.sock"),), policy=policy))
                self.assertEqual((client.info.pull_transport, client.info.push_transport), ("cuda", "cuda"))
                self.assertTrue(client.info.initialized_model)
                self.assert_trains(client)
                client.leave()

    def test_values_go_by_way_of_the_host_where_no_memory_is_shared(self):
        tcp = {"listen": ("tcp://127.0.0.1:0",)}
        for number, (settings, *transports) in enumerate((({"device": "cpu"}, "rpc", "shm"), ({"device": "cpu", "policy": "hogwild"}, "shm", "shm"),
                                                          (tcp, "rpc", "rpc"), ({"device": "cpu", **tcp}, "rpc", "rpc"),
                                                          ({"codecs": '{"push":{"default":"fp16"}}'}, "rpc", "rpc"))):
            with self.subTest(**settings):
                daemon = self.device_daemon(**{"listen": (self.unix_address(f"{number}.sock"),), **settings})
                client = self.joined(daemon, connections=2)
                self.assertEqual([client.info.pull_transport, client.info.push_transport], transports)
                self.assert_trains(client)
                client.leave()

    def test_several_daemons_have_the_model_together(self):
        addresses = [self.unix_address(f"{index}.sock") for index in range(2)]
        for index, address in enumerate(addresses):
            first = self.device_daemon(listen=(address,), daemons=addresses, index=index)
        self.assert_trains(self.joined(first))

    def test_a_call_waits_for_what_is_under_way_on_its_arrays(self):
        daemon = self.device_daemon()
        for options in ({}, {"transport": "rpc"}):
            with self.subTest(**options):
                client = self.joined(daemon, **options)
                gradient, values = DeviceArray(filled(-9)), DeviceArray(filled(0))
                client.pull(values)
                before = values.values()
                self.queue_write(gradient)
                client.push(gradient)
                client.pull(values)
                self.assert_holds(values, before + filled(1))
                push = client.partial_push(gradient)
                self.queue_write(gradient)
                push.ready(0, MODEL.size)
                push.finish().wait()
                client.pull(values)
                self.assert_holds(values, before + filled(2))
                # Work queued on the array that a pull fills is done first.
                self.queue_write(values)
                client.pull(values)
                self.assert_holds(values, before + filled(2))
                client.leave()
                client.close()

    def queue_write(self, array):
        """Queues a write of −1 to the array on its stream, which runs some time after the array has been handed over: a
        consumer that does not wait reads the old values."""
        handed_over = self.queue_blocked_write(array)

        def export_dlpack(stream=None):
            threading.Timer(0.05, handed_over.set).start()
            return DeviceArray.__dlpack__(array, stream)

        array.__dlpack__ = export_dlpack

    def queue_blocked_write(self, array):
        """Queues a write of −1 to the array on its stream, which runs when the returned event is set; its `waited` is
        empty until then."""
        free = threading.Event()
        free.waited = []
        free.callback = CALLBACK(lambda *_: free.waited.append(free.wait(processes.WAIT_S)))
        call("cudaStreamAddCallback", array.stream, free.callback, None, 0)
        array.set(filled(-1))
        self.addCleanup(free.set)
        return free

    def stop(self, begin, array, when=lambda: True):
        """Runs begin(array), and ends its wait by a signal when `when()` is true."""
        asked = threading.Event()

        def export_dlpack(stream=None):
            asked.set()
            return DeviceArray.__dlpack__(array, stream)

        def handler(_, frame):
            if asked.is_set() and frame.f_code is begin.__func__.__code__ and when():  # from there on Python runs only signal handlers
                raise Stopped

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handler))
        array.__dlpack__ = export_dlpack
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        try:
            with self.assertRaises(Stopped):
                begin(array)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            del array.__dlpack__

    def test_a_call_ended_by_a_signal_keeps_its_arrays(self):
        for number, options in enumerate(({}, {"transport": "rpc"})):
            with self.subTest(**options):
                daemon = self.device_daemon(listen=(self.unix_address(f"{number}.sock"),), policy="sync")
                first, second = (psd.Client(daemon.address, device="cuda:0", **options) for _ in range(2))
                for rank, client in enumerate((first, second)):
                    self.addCleanup(client.close)
                    client.join(MODEL, DeviceArray(filled(2)), rank, 2)
                gradient, destination, values = DeviceArray(filled(-9)), DeviceArray(filled(0)), DeviceArray(filled(0))
                arrays = [weakref.ref(gradient), weakref.ref(destination)]
                free = self.queue_blocked_write(gradient)
                for begin, array in ((first.begin_push, gradient), (first.begin_pull, destination)):  # wait for the device: nothing is sent
                    self.stop(begin, array)
                self.assertEqual((first.step, free.waited), (0, []))
                free.set()
                self.stop(first.push, gradient, lambda daemon=daemon: any(each["step"] == 1 for each in daemon.status()["trainers"]))
                del array, gradient, destination
                first.ping()
                gc.collect()
                self.assertEqual([array() is None for array in arrays], [False, True])
                second.push(DeviceArray(filled(-3)))
                first.pull(values)
                self.assert_holds(values, filled(4))  # of both gradients, whole

                def is_released():
                    first.ping()
                    gc.collect()
                    return not any(array() for array in arrays)

                processes.until("the arrays are released", is_released)

    def test_interrupt_ends_a_wait_for_the_device(self):
        daemon = self.device_daemon()
        for options in ({}, {"transport": "rpc"}):
            for kind in ("push", "pull", "partial_push"):
                with self.subTest(kind=kind, **options):
                    client, array = self.joined(daemon, **options), DeviceArray(filled(0))
                    free = self.queue_blocked_write(array)
                    interrupts = threading.Thread(target=client.interrupt)
                    with self.assertRaises(psd.Interrupted):
                        if kind == "partial_push":
                            push = client.partial_push(array)
                            push.ready(0, MODEL.size)
                            interrupts.start()
                            push.finish().wait()
                        else:
                            begun = getattr(client, "begin_" + kind)
                            with unittest.mock.patch("psd._cuda.export_dlpack", lambda *given: (interrupts.start(), HAND_OVER(*given))[1]):
                                begun(array).wait()
                    client.close()
                    # The interrupt may have broken the connection, which the daemon detects on its own.
                    processes.until("the daemon has lost it", lambda: not daemon.status()["trainers"])
                    self.assertEqual(free.waited, [])
                    free.set()
                    interrupts.join()

    def test_a_closed_client_touches_no_array(self):
        client, array = self.joined(self.device_daemon()), DeviceArray(filled(0))
        push = client.partial_push(array)
        calls = (client.push, client.pull, client.partial_push, lambda array: client.join(MODEL, array), lambda _: push.ready(0, 16))
        with unittest.mock.patch.object(DeviceArray, "__dlpack__", side_effect=AssertionError("its stream is gone")):
            child = os.fork()
            if child == 0:
                refused = 0
                for call_with in calls:
                    try:
                        call_with(array)
                    except psd.InvalidArgument as error:
                        refused += "forked" in str(error)
                os._exit(refused)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(calls))
            client.close()
            for call_with in calls:
                with self.assertRaisesRegex(psd.InvalidArgument, "^this client is closed$"):
                    call_with(array)

    def test_what_does_not_fit_is_refused_by_its_name(self):
        client = self.joined(self.device_daemon())
        values = DeviceArray(filled(0))
        for wrong, message in ((MODEL.zeros(), r"in the memory of cuda:0, not ndarray, dtype float32, shape \(3088,\)"),
                               (DeviceArray(filled(0), 1), "not DeviceArray, .*, device cuda:1"),
                               (DeviceArray(filled(0), bits=64), "float32 array .*, dtype float64"),
                               (DeviceArray(filled(0), shape=(2, MODEL.size // 2)), r"shape \(2, 1544\)"),
                               (DeviceArray(filled(0), strides=(2,)), "not DeviceArray"), (None, "NoneType"), ([1.0], "list")):
            for name, made_with in (("the gradient of a push", client.push), ("the destination of a pull", client.pull),
                                    ("the gradient of a push", client.partial_push)):
                with self.assertRaisesRegex(TypeError, f"^{name} must be a flat, contiguous.*{message}"):
                    made_with(wrong)
        with unittest.mock.patch.object(values, "__dlpack__", side_effect=BufferError("it is being computed"), create=True):
            with self.assertRaisesRegex(TypeError, "^the gradient of a push must be .*, device cuda:0: it is being computed$"):
                client.push(values)
        self.assert_unknown_tensors_refused(client)
        on_host = psd.Client(self.daemon().address)
        self.addCleanup(on_host.close)
        with self.assertRaisesRegex(TypeError, "the initial values must be .* in host memory, not DeviceArray.*; psd.Client's `device` is"):
            on_host.join(MODEL, values)

    def assert_unknown_tensors_refused(self, client):
        values, beyond = DeviceArray(filled(0)), DeviceArray(np.zeros(5), shape=(1 << 20,))  # copying the second fails
        for refused in (client.push, client.pull):
            with self.assertRaisesRegex(psd.InvalidArgument, "begins 4 bytes off a multiple of 8"):
                refused(DeviceArray(filled(0), offset=4))
            for array, elements in ((DeviceArray(np.zeros(5)), 5), (beyond, 1 << 20)):
                with self.assertRaisesRegex(psd.InvalidArgument, f"has {elements} elements; the model's layout has {MODEL.size}"):
                    refused(array)
        client.pull(values)
        self.assert_holds(values, filled(2))  # the client continues

    def test_what_does_not_fit_is_refused_where_no_memory_is_shared(self):
        copy_fails = DeviceArray(np.zeros(5), shape=(MODEL.size,))
        for number, (array, message) in enumerate(((copy_fails, "^cuda:0: cudaMemcpyAsync: cudaErrorInvalidValue$"),
                                                   (DeviceArray(np.zeros(5)), "^the initial values has 5 elements"), (None, None))):
            daemon = self.device_daemon(listen=(self.unix_address(f"{number}.sock"),))
            if message is None:
                self.assert_unknown_tensors_refused(self.joined(daemon, transport="rpc"))
            else:
                with self.assertRaisesRegex(psd.Error, message):
                    self.joined(daemon, array)

    def test_a_device_that_cannot_be_is_refused(self):
        daemon = self.daemon()
        for device in ("cuda", "cpu", "cuda:", "cuda:-1", "cuda:x", "gpu:0", 0, "cuda:²"):
            with self.assertRaisesRegex(psd.InvalidArgument, 'device is "cuda:N", or None for host memory, not '):
                psd.Client(daemon.address, device=device)
        with self.assertRaisesRegex(psd.Error, "cuda:7: cudaSetDevice: "):
            psd.Client(daemon.address, device="cuda:7")
        with unittest.mock.patch("psd._cuda.has_runtime", return_value=False):
            with self.assertRaisesRegex(psd.InvalidArgument, "device cuda:0: this process has no CUDA runtime; import torch"):
                psd.Client(daemon.address, device="cuda:0")

    def test_the_newest_values_are_brought_from_the_device(self):
        daemon = self.device_daemon()
        client = self.joined(daemon)
        gradient, values = DeviceArray(filled(-5)), DeviceArray(filled(0))
        client.push(gradient)
        client.pull(values)
        expected = 7
        for device in ("cuda:0", "cpu", "cuda:0"):  # the CPU's shares no memory that a device can use
            daemon.kill()
            daemon = self.device_daemon(device=device)
            client.pull(values)
            self.assert_holds(values, filled(expected))
            client.push(gradient)
            client.pull(values)
            expected += 5
            self.assert_holds(values, filled(expected))

    def test_the_model_moves_to_where_no_memory_is_shared_and_back(self):
        daemon = self.device_daemon()
        client = self.joined(daemon)
        gradient, values = DeviceArray(filled(-1)), DeviceArray(filled(0))
        for step, (name, device) in enumerate((("b", "cpu"), ("c", "cuda:0")), 3):
            other = self.device_daemon(listen=(self.unix_address(f"{name}.sock"),), device=device)
            move = self.start_psd("move", "--server", daemon.address, "--to", other.address)
            processes.until("the move has begun", lambda d=daemon: "is about to move" in d.err)
            client.pull(values)  # quiesces
            self.assert_ends(move)
            client.push(gradient)
            client.pull(values)
            self.assert_holds(values, filled(step))
            daemon = other

    def test_an_observer_pulls_into_the_device(self):
        daemon = self.device_daemon()
        self.joined(daemon)
        with psd.Client(daemon.address, device="cuda:0") as observer:
            observer.observe(MODEL)
            values = DeviceArray(filled(0))
            observer.pull(values)
            self.assert_holds(values, filled(2))

    def test_rows_stay_in_host_memory(self):
        model = psd.Model("ratings", {"bias": (16,)}, [psd.Table("user", 4, "zero")])
        daemon = self.device_daemon()
        with psd.Client(daemon.address, device="cuda:0") as client:
            client.join(model, DeviceArray(np.ones(16)), 0, 1)
            rows, values = client.rows(), DeviceArray(np.zeros(16))
            rows.make([("user", np.array([7, 3, 7], np.uint64))])
            client.pull(values, rows)
            self.assertEqual(rows.values("user").tolist(), [[0] * 4] * 2)
            rows.gradients("user")[:] = -1
            client.push(DeviceArray(-np.ones(16)), rows=rows)
            client.pull(np.zeros(0, np.float32), rows)  # only rows
            self.assertEqual(rows.values("user").tolist(), [[1] * 4] * 2)
            client.pull(values)
            self.assert_holds(values, np.full(16, 2))

    def test_arrays_are_released(self):
        daemon = self.device_daemon()

        def trains():
            with psd.Client(daemon.address, device="cuda:0") as client:
                client.join(MODEL, DeviceArray(filled(2)), 0, 1)
                gradient, values = DeviceArray(filled(-1)), DeviceArray(filled(0))
                client.begin_push(gradient)  # without waiting
                client.partial_push(gradient).ready(0, 16)  # abandoned
                client.begin_pull(DeviceArray(filled(0)))
                client.pull(values)
                self.assert_holds(values, filled(3))

        trains()
        gc.collect()
        self.assertEqual(handed, {})


if __name__ == "__main__":
    processes.main()
