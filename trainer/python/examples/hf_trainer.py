"""A small GPT-2 with the Trainer of Hugging Face's transformers, from random values, on texts of numbers:

    psd --set policy.type=locked
    pip install transformers accelerate
    python hf_trainer.py --server tcp://localhost:5500

Started again with --resume at the same daemon, it continues from the newest checkpoint in --output.
"""

import argparse
import os

import torch
import transformers
from torch import Tensor

import psd.torch

VOCABULARY, LENGTH = 64, 24


def texts(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Texts of numbers that rise by a constant of each text."""
    generator = torch.Generator().manual_seed(seed)
    first, rise = (torch.randint(1, most, (count, 1), generator=generator) for most in (VOCABULARY, 5))
    return [{"input_ids": text, "labels": text} for text in (first + rise * torch.arange(LENGTH)) % VOCABULARY]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", default="hf_output", help="folder of the checkpoints")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.set_seed(1)

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4,
                                                                 bos_token_id=0, eos_token_id=0))
    data, validation = texts(512, seed=2), texts(64, seed=3)
    settings = transformers.TrainingArguments(
        output_dir=arguments.output, num_train_epochs=arguments.epochs, per_device_train_batch_size=16, max_grad_norm=1.0, eval_strategy="epoch",
        save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="loss", use_cpu=True, report_to=[], logging_strategy="no")
    steps = arguments.epochs * len(data) // 16
    with psd.torch.Optimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), arguments.server, samples=16) as optimizer:
        scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
        trainer = transformers.Trainer(model=model, args=settings, train_dataset=data, eval_dataset=validation, optimizers=(optimizer, scheduler))
        print(f"before: loss {trainer.evaluate()['eval_loss']:.3f}")
        trainer.train(resume_from_checkpoint=arguments.resume and os.path.isdir(arguments.output))
        print(f"best model of step {trainer.state.best_global_step}: loss {trainer.evaluate()['eval_loss']:.3f}")


if __name__ == "__main__":
    main()
