"""A classifier with the Trainer of PyTorch Lightning:

    psd --set policy.type=locked
    pip install pytorch-lightning
    python lightning_example.py --server tcp://localhost:5500
"""

import argparse
import tempfile

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import psd.torch

FEATURES, CLASSES = 16, 4


def clusters(count: int, seed: int) -> TensorDataset:
    """Points around one center for each class."""
    centers = 1.5 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return TensorDataset(centers[labels] + torch.randn(count, FEATURES, generator=generator), labels)


class Classifier(lightning.LightningModule):
    def __init__(self, server: str | None, steps: int):
        super().__init__()
        self.server, self.steps = server, steps
        self.net = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, CLASSES))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        self.log("validation", self.loss(batch))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        self.served = psd.torch.Optimizer(torch.optim.AdamW(self.parameters(), lr=1e-3), self.server, samples=32)
        schedule = torch.optim.lr_scheduler.OneCycleLR(self.served, 1e-2, total_steps=self.steps)
        return {"optimizer": self.served, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="address of the daemon; default: the environment's PSD_SERVER")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lightning.seed_everything(1)

    data, validation = DataLoader(clusters(1024, seed=2), batch_size=32, shuffle=True), DataLoader(clusters(256, seed=3), batch_size=64)
    model = Classifier(arguments.server, steps=arguments.epochs * len(data))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(max_epochs=arguments.epochs, accelerator="cpu", gradient_clip_val=1.0, enable_progress_bar=False,
                                    logger=CSVLogger(folder), callbacks=[ModelCheckpoint(folder, monitor="validation"), LearningRateMonitor("step")])
        before = trainer.validate(model, validation, verbose=False)[0]["validation"]
        trainer.fit(model, data, validation)
        after = trainer.validate(model, validation, ckpt_path="best", verbose=False)[0]["validation"]
    model.served.close()
    print(f"before: loss {before:.3f}; the best model: loss {after:.3f}")


if __name__ == "__main__":
    main()
