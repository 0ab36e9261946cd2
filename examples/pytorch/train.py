"""Trains a small model with DistributedDataParallel, or with FSDP (--fsdp), and prints a digest of the parameters.

Start it with torchrun, through `ibverbx nccl` to use ibverbx as NCCL's network (README.md). The data loader forks
workers, as real training programs do. With a fixed seed, the digest does not depend on the network.
"""

import argparse
import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic algorithms

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    """Pairs of a random vector and the signs of its running sums."""

    def __init__(self, rank, steps, batch):
        self.rank, self.length = rank, steps * batch

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1_000_003 * self.rank + i)
        x = torch.randn(512, generator=g)
        return x, torch.sign(torch.cumsum(x, 0))


def build(device, width):
    torch.manual_seed(7)
    layers = [nn.Linear(512, width), nn.GELU()]
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 512)).to(device)


def digest(model):
    h = hashlib.sha256()
    for p in model.parameters():
        whole = p.full_tensor() if hasattr(p, "full_tensor") else p
        h.update(whole.detach().float().cpu().numpy().tobytes())
    return h.hexdigest()[:16]


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--steps", type=int, default=100)
    a.add_argument("--batch", type=int, default=32, help="samples per rank and step")
    a.add_argument("--width", type=int, default=2048)
    a.add_argument("--workers", type=int, default=2, help="forked data loader workers")
    a.add_argument("--fsdp", action="store_true", help="shard parameters instead of copying them")
    args = a.parse_args()

    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", device_id=device)

    model = build(device, args.width)
    if args.fsdp:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
        net = model
    else:
        net = DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    data = DataLoader(Squares(rank, args.steps, args.batch), batch_size=args.batch, num_workers=args.workers)
    begin, loss = time.time(), None
    for step, (x, y) in enumerate(data):
        loss = nn.functional.mse_loss(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    torch.cuda.synchronize()
    took, result = time.time() - begin, digest(model)
    if rank == 0:
        print(f"{args.steps} steps in {took:.1f} s, loss {loss.item():.6f}, parameters {result}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
