"""The training program of the check: uses CUDA for real and says on which device, one JSON line each.

    cuda_program.py compute SECONDS   compute, verify, stay that long, exit 0
    cuda_program.py hold MIB          hold memory in this process and a daemon, until ended
    cuda_program.py die MIB           the same, then end itself with SIGKILL once the daemon is ready

Runs under any Python 3 of the machine. CUDA through torch where present, else through libcuda.
"""

import ctypes
import json
import os
import signal
import sys
import time

PTX = b"""
.version VERSION
.target TARGET
.address_size 64
.visible .entry twice_plus_one(.param .u64 data, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    .reg .f32 %f<3>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    fma.rn.f32 %f2, %f1, 0f40000000, 0f3F800000;
    st.global.f32 [%rd4], %f2;
DONE:
    ret;
}
\0"""
TARGETS = (b"6.3", b"sm_50"), (b"6.3", b"sm_75"), (b"7.0", b"sm_80"), (b"7.8", b"sm_90")
"""PTX version and architecture, oldest first; a driver that has dropped one refuses it."""
COUNT = 1 << 20
THREADS = 256
SIMULATED = os.environ.get("TRAINSHED_GPUS_SIMULATED") == "1"


class Cuda:
    """The first visible device, through the driver's own interface."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        self.count = count.value
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        uuid = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid", ctypes.byref(uuid), device)
        text = bytes(uuid).hex()
        self.uuid = "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise SystemExit("%s failed with CUDA error %d" % (name, code))

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        self.call("cuCtxSynchronize")
        return address

    def compute(self):
        """Run a kernel over a million numbers and check every one."""
        numbers = (ctypes.c_float * COUNT)(*(index % 1000 for index in range(COUNT)))
        size = ctypes.c_size_t(ctypes.sizeof(numbers))
        address = self.allocate(size.value)
        self.call("cuMemcpyHtoD_v2", address, numbers, size)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        for version, target in TARGETS:
            text = PTX.replace(b"VERSION", version).replace(b"TARGET", target)
            code = self.driver.cuModuleLoadData(ctypes.byref(module), text)
            if code == 0:
                break
        else:
            raise SystemExit("cuModuleLoadData failed with CUDA error %d" % code)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"twice_plus_one")
        count = ctypes.c_uint32(COUNT)
        pointers = (ctypes.c_void_p * 2)(
            ctypes.cast(ctypes.byref(address), ctypes.c_void_p),
            ctypes.cast(ctypes.byref(count), ctypes.c_void_p),
        )
        self.call("cuLaunchKernel", function, COUNT // THREADS, 1, 1, THREADS, 1, 1, 0, None, pointers, None)
        self.call("cuCtxSynchronize")
        self.call("cuMemcpyDtoH_v2", numbers, address, size)
        self.call("cuMemFree_v2", address)
        return all(numbers[index] == 2 * (index % 1000) + 1 for index in range(COUNT))


def torch_compute():
    """The same with torch; ``None`` where it is missing or has no CUDA."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    numbers = torch.arange(COUNT, dtype=torch.float64) % 1000
    return bool(torch.equal((numbers.cuda() * 2 + 1).cpu(), numbers * 2 + 1))


def say(**facts):
    facts["at"] = time.time()
    facts["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def device():
    if SIMULATED:
        model, index = os.environ["TRAINSHED_GPU_MODEL"], os.environ["TRAINSHED_GPUS"]
        return None, "SIMULATED-%s-%s" % (model, index), 1
    cuda = Cuda()
    return cuda, cuda.uuid, cuda.count


def compute(seconds):
    cuda, uuid, count = device()
    say(event="begin", uuid=uuid, devices=count)
    correct, through = (True, "nothing (simulated)") if cuda is None else (torch_compute(), "torch")
    if correct is None:
        correct, through = cuda.compute(), "libcuda"
    time.sleep(seconds)
    say(event="end", uuid=uuid, devices=count, correct=correct, through=through)
    return 0 if correct else 1


def hold(mib, ready):
    cuda, uuid, count = device()
    if cuda is not None:
        cuda.allocate(mib << 20)
    say(event="holding", uuid=uuid, devices=count, pid=os.getpid())
    ready()
    while True:
        time.sleep(1000)


def hold_twice(mib, then):
    """Hold memory in a daemon that left the session too, and ``then`` act once both are ready."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            os._exit(0)
        hold(mib, lambda: os.write(write_end, b"1"))
    os.read(read_end, 1)
    hold(mib, then)


if __name__ == "__main__":
    what, amount = sys.argv[1], int(sys.argv[2])
    if what == "compute":
        sys.exit(compute(amount))
    hold_twice(amount, (lambda: os.kill(os.getpid(), signal.SIGKILL)) if what == "die" else lambda: None)
