# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer on a small random GPT-2, run by torchrun over gloo; data made on the spot."""

import argparse
import json
import os
import tempfile
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

VOCABULARY, LENGTH = 500, 48


class RandomText(Dataset[dict[str, torch.Tensor]]):
    """Token rows that need no download."""

    def __init__(self, rows: int) -> None:
        self.rows = torch.randint(0, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Clock(TrainerCallback):
    """Append what each optimizer step took to `path`.RANK; nothing if there is no path."""

    def __init__(self, path: str) -> None:
        self.path, self.begin_ns = path, 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        self.begin_ns = time.time_ns()

    def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        if self.path:
            rank = int(os.environ["RANK"])
            row = {
                "rank": rank,
                "step": state.global_step - 1,
                "t_ns": self.begin_ns,
                "dur_ns": time.time_ns() - self.begin_ns,
            }
            with open(f"{self.path}.{rank}", "a") as out:
                out.write(json.dumps(row) + "\n")


def main() -> None:
    parse = argparse.ArgumentParser()
    parse.add_argument("--steps", type=int, default=60)
    parse.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parse.add_argument("--times", default=os.environ.get("JOB_TIMES", ""))
    args = parse.parse_args()
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=128, n_layer=3, n_head=4))
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, max_steps=args.steps, per_device_train_batch_size=8,
            gradient_accumulation_steps=args.accumulate, ddp_backend="gloo", use_cpu=True,
            save_strategy="no", report_to=[], logging_steps=10, disable_tqdm=True,
        )  # fmt: skip
        Trainer(model=model, args=settings, train_dataset=RandomText(4000), callbacks=[Clock(args.times)]).train()


if __name__ == "__main__":
    main()
