# SPDX-License-Identifier: Apache-2.0
"""An ordinary data-parallel training script: a small character transformer, DDP over gloo, on CPUs.

It knows nothing of ghtools. It prints its step and loss, as training scripts do.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self, vocabulary: int = 96, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--load-ms", type=float, default=0.0, help="how long a batch takes to come from storage")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model(), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    began = time.perf_counter()
    for step in range(args.steps):
        time.sleep(args.load_ms / 1000)
        tokens = torch.randint(0, 96, (args.batch, args.length + 1))
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1} loss {loss.item():.3f} {time.perf_counter() - began:.1f} s", flush=True)
    time.sleep(0.3)  # torch 2.13 may abort when a script leaves right after its last collective
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
