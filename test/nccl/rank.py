"""One rank of the tests in gpu. Prints lines "NAME VALUE": digests of results, or bytes per second."""

import ctypes
import hashlib
import os
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", 0)
STORE = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), WORLD, RANK == 0)
SIZES = [4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]  # bytes


def say(name, value):
    print(name, value, flush=True)


def digest(t):
    return hashlib.sha256(t.contiguous().view(torch.uint8).cpu().numpy().data).hexdigest()[:16]


def values(n, dtype, seed):
    g = torch.Generator(DEVICE).manual_seed(seed * 1000 + RANK)
    return torch.randn(n, generator=g, device=DEVICE).to(dtype)


def start(use):
    """Both uses share a store: a second one at the same port could be dialed while the first one closes."""
    dist.init_process_group("nccl", store=dist.PrefixStore(use, STORE), rank=RANK, world_size=WORLD, device_id=DEVICE)


def collectives():
    """Every collective with every size and type."""
    limit = int(os.environ.get("TEST_MAX_BYTES", SIZES[-1]))
    for dtype in (torch.float32, torch.bfloat16):
        width = torch.tensor([], dtype=dtype).element_size()
        for size in [s for s in SIZES if s <= limit]:
            n = max(size // width, WORLD) // WORLD * WORLD
            name = f"{str(dtype)[6:]}/{size}"
            x = values(n, dtype, 1)
            dist.all_reduce(x)
            say(f"all_reduce/{name}", digest(x))
            out = torch.empty(n * WORLD, dtype=dtype, device=DEVICE)
            dist.all_gather_into_tensor(out, values(n, dtype, 2))
            say(f"all_gather/{name}", digest(out))
            del out
            out = torch.empty(n // WORLD, dtype=dtype, device=DEVICE)
            dist.reduce_scatter_tensor(out, values(n, dtype, 3))
            say(f"reduce_scatter/{name}", digest(out))
            out = torch.empty(n, dtype=dtype, device=DEVICE)
            dist.all_to_all_single(out, values(n, dtype, 4))
            say(f"all_to_all/{name}", digest(out))
            x = values(n, dtype, 5)
            dist.broadcast(x, 0)
            say(f"broadcast/{name}", digest(x))
            x, y = values(n, dtype, 6), torch.empty(n, dtype=dtype, device=DEVICE)
            if RANK % 2 == 0:
                dist.send(x, (RANK + 1) % WORLD)
                dist.recv(y, (RANK - 1) % WORLD)
            else:
                dist.recv(y, (RANK - 1) % WORLD)
                dist.send(x, (RANK + 1) % WORLD)
            say(f"send_recv/{name}", digest(y))


def lost():
    """A rail is down for a second in the middle of a stream of all_reduce. Rank 0 takes it down."""
    if RANK == 0 and os.environ.get("TEST_RAIL_DOWN"):
        rail = ctypes.CDLL(os.environ["NCCL_NET_PLUGIN"]).ibverbx_nccl_rail

        def fault():
            time.sleep(0.5)
            if rail(1, 0):
                os._exit(1)
            time.sleep(1)
            rail(1, 1)

        threading.Thread(target=fault, daemon=True).start()
    h = hashlib.sha256()
    for step in range(60):
        x = values(4 << 20, torch.float32, 100 + step)
        dist.all_reduce(x)
        h.update(digest(x).encode())
    say("lost", h.hexdigest()[:16])


def life():
    """Communicators are destroyed and made again, used at the same time, and aborted."""
    x = values(1 << 20, torch.float32, 1)
    dist.all_reduce(x)
    say("life/first", digest(x))
    dist.destroy_process_group()
    start("again")
    x = values(1 << 20, torch.float32, 1)
    dist.all_reduce(x)
    say("life/again", digest(x))
    a, b = dist.new_group(), dist.new_group()
    streams, outs = [torch.cuda.Stream(), torch.cuda.Stream()], []
    for i, group in enumerate((a, b)):
        x = values(1 << 20, torch.float32, 10 + i)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[i]):
            for _ in range(10):
                dist.all_reduce(x, dist.ReduceOp.AVG, group=group)
        outs.append(x)
    torch.cuda.synchronize()
    say("life/two", digest(torch.cat(outs)))
    dist.barrier()
    if RANK == 0:  # the others do not take part
        work = dist.all_reduce(values(16 << 20, torch.float32, 1), async_op=True)
        time.sleep(1)
        say("life/pending", not work.is_completed())
        begin = time.time()
        group = dist.distributed_c10d._get_default_group()
        (getattr(group._get_backend(DEVICE), "abort", None) or group.abort)()
        say("life/abort", time.time() - begin < 20)
    else:
        time.sleep(5)
        say("life/pending", True)
        say("life/abort", True)
    sys.stdout.flush()
    os._exit(0)


def speed():
    """The rate of all_reduce, in bytes of the tensor per second: the median."""
    for size in (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20):
        x = torch.zeros(size // 4, device=DEVICE)
        times = []
        for _ in range(int(os.environ.get("TEST_REPEAT", "7"))):
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.time()
            dist.all_reduce(x)
            torch.cuda.synchronize()
            times.append(time.time() - begin)
        if RANK == 0:
            say(f"speed/{size}", size / statistics.median(times[1:]))


torch.cuda.set_device(DEVICE)
start("first")
globals()[sys.argv[1]]()
torch.cuda.synchronize()
if dist.is_initialized():
    dist.destroy_process_group()
