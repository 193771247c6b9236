"""psd.torch.Optimizer in the training programs of Hugging Face and Lightning: the numbers are those of the same program
with torch.optim alone. Runs with scripts/test --frameworks, which installs the packages."""

import contextlib
import copy
import importlib.util
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import processes
from example_programs import EXAMPLES

PACKAGES = ("transformers", "accelerate", "pytorch_lightning", "peft")
MISSING = [name for name in PACKAGES if not importlib.util.find_spec(name)]
if MISSING:
    print(f"skipped: no {', '.join(MISSING)} (scripts/test --frameworks)")
    sys.exit(processes.EXIT_SKIPPED)
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")

import accelerate
import peft
import pytorch_lightning as lightning
import served_models
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState
from pytorch_lightning import callbacks, loggers
from torch.utils.data import DataLoader, TensorDataset

import psd
import psd.torch

transformers.utils.logging.disable_progress_bar()

VOCABULARY, LENGTH, TEXTS = 24, 12, 32
TOLERANCE = 2e-5


def texts(count, seed):
    """Texts of numbers that rise by a constant of each text."""
    generator = torch.Generator().manual_seed(seed)
    first, rise = (torch.randint(1, most, (count, 1), generator=generator) for most in (VOCABULARY, 5))
    return (first + rise * torch.arange(LENGTH)) % VOCABULARY


def gpt2(dropout=0.1):
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, resid_pdrop=dropout,
                                     embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def adamw(model, lr=3e-3):
    """Weight decay for matrices only."""
    named = [each for each in model.named_parameters() if each[1].requires_grad]
    return torch.optim.AdamW([{"params": [parameter for _, parameter in named if parameter.dim() >= 2], "weight_decay": 0.1},
                              {"params": [parameter for _, parameter in named if parameter.dim() < 2], "weight_decay": 0.0}], lr=lr)


class PythonFrameworks(served_models.ServedTest):
    def setUp(self):
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # the frameworks' own
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    def with_and_without(self):
        """For each run a function that wraps an optimizer, and a folder: those of a daemon, then of torch.optim alone."""
        daemon = self.daemon(policy="locked", optimizer=None)
        made = []

        def wrap(optimizer, **options):
            if made:
                made.pop().close()  # as the end of its process does
            made.append(psd.torch.Optimizer(optimizer, daemon.address, rank=0, world_size=1, **options))
            self.addCleanup(made[0].client.close)
            return made[0]

        for name, each in (("psd", wrap), ("torch", lambda optimizer: optimizer)):
            folder = self.folder / name
            folder.mkdir()
            yield each, folder

    @contextlib.contextmanager
    def resumes_silently(self):
        """But for the line that says that the daemon has the model."""
        with self.assertLogs("psd", logging.WARNING) as logs:
            logging.getLogger("psd").warning("the daemon has a model already")
            yield
        self.assertTrue(all("the daemon has a model already" in line for line in logs.output), logs.output)

    def assert_close(self, mine, local, tolerance=TOLERANCE):
        self.assertEqual(list(mine), list(local))
        for name, one in mine.items():
            self.assertLessEqual(float((one - local[name]).abs().max()), tolerance, name)

    def assert_near(self, mine, local):
        self.assertEqual(len(mine), len(local))
        for one, two in zip(mine, local):
            self.assertAlmostEqual(one, two, delta=1e-4)

    # --- Hugging Face ---------------------------------------------------------------------------------------

    def hugging_face(self, wrap, folder, stop_after=None, resume=None):
        """Trains for 4 epochs, or is stopped. Returns the Trainer."""
        class Stop(transformers.TrainerCallback):
            def on_epoch_end(self, args, state, control, **_):
                control.should_training_stop = stop_after is not None and state.epoch >= stop_after

        model = gpt2()
        optimizer = wrap(adamw(model))
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), num_train_epochs=4, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_grad_norm=0.5,
            eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="loss", logging_steps=1,
            use_cpu=True, report_to=[], disable_tqdm=True, seed=7)
        scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, 3, 16)
        data, other = ([{"input_ids": text, "labels": text} for text in texts(count, seed)] for count, seed in ((TEXTS, 2), (8, 3)))
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=other, optimizers=(optimizer, scheduler),
                                       callbacks=[Stop()])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def test_hugging_face_trainer(self):
        found = []
        for wrap, folder in self.with_and_without():
            trainer = self.hugging_face(wrap, folder)
            self.assertEqual(trainer.state.global_step, 16)
            history = [entry[key] for entry in trainer.state.log_history for key in ("loss", "eval_loss", "learning_rate") if key in entry]
            self.assertLess(history[-1], history[0])
            again = trainer.evaluate()["eval_loss"]  # of the best model, which is loaded
            self.assertAlmostEqual(again, trainer.state.best_metric, delta=1e-5)
            found.append((trainer.model.state_dict(), [*history, again]))
        self.assert_close(*(values for values, _ in found))
        self.assert_near(*(history for _, history in found))

    def test_hugging_face_resumes_at_the_daemon(self):
        found = []
        for wrap, folder in self.with_and_without():
            first = self.hugging_face(wrap, folder, stop_after=2)
            self.assertEqual(first.state.global_step, 8)
            with self.resumes_silently():
                trainer = self.hugging_face(wrap, folder, resume=True)
            self.assertEqual(trainer.state.global_step, 16)
            found.append(copy.deepcopy(trainer.model.state_dict()))
        self.assert_close(*found)
        with tempfile.TemporaryDirectory() as folder:
            whole = self.hugging_face(lambda optimizer: optimizer, folder).model.state_dict()
        self.assert_close(found[0], whole)

    # --- accelerate ---------------------------------------------------------------------------------------------

    def accelerated(self, wrap, folder, passes, load=False):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = gpt2(dropout=0.0)
        optimizer = wrap(adamw(model))
        loader = DataLoader(TensorDataset(texts(TEXTS, 2)), batch_size=4)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 3e-3], total_steps=20)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        if load:
            accelerator.load_state(folder)
        for _ in range(passes):
            for (ids,) in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(input_ids=ids, labels=ids).loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
        accelerator.save_state(folder)
        return accelerator.unwrap_model(model).state_dict(), [group["lr"] for group in optimizer.param_groups]

    def test_accelerate(self):
        found = []
        for wrap, folder in self.with_and_without():
            self.accelerated(wrap, folder, passes=2)
            with self.resumes_silently():
                found.append(self.accelerated(wrap, folder, passes=2, load=True))
        self.assert_close(*(values for values, _ in found))
        self.assertEqual(*(rates for _, rates in found))

    # --- Lightning ----------------------------------------------------------------------------------------------

    def lightning(self, wrap, folder, epochs, resume=None):
        class Rising(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net, self.losses = gpt2(), []

            def training_step(self, batch, _):
                loss = self.net(input_ids=batch[0], labels=batch[0]).loss
                self.losses.append(float(loss.detach()))
                return loss

            def validation_step(self, batch, _):
                self.log("validation", self.net(input_ids=batch[0], labels=batch[0]).loss)

            def configure_optimizers(self):
                optimizer = wrap(adamw(self))
                scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 3e-3], total_steps=60)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

        lightning.seed_everything(5, verbose=False)
        model = Rising()
        best = callbacks.ModelCheckpoint(folder, monitor="validation", save_last=True)
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, gradient_clip_val=0.5, accumulate_grad_batches=2,
                                    logger=loggers.CSVLogger(folder), log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
                                    callbacks=[best, callbacks.LearningRateMonitor("step")])
        loaders = [DataLoader(TensorDataset(texts(count, seed)), batch_size=4) for count, seed in ((TEXTS, 2), (8, 3))]
        trainer.fit(model, *loaders, ckpt_path=resume)
        values = copy.deepcopy(model.state_dict())
        (scores,) = trainer.validate(model, loaders[1], ckpt_path="best", verbose=False)
        self.assertAlmostEqual(scores["validation"], float(best.best_model_score), delta=1e-5)
        (metrics,) = pathlib.Path(trainer.logger.log_dir).glob("metrics.csv")
        rates = re.findall(r"0\.\d+(?:e-\d+)?", metrics.read_text())
        self.assertGreater(len(rates), 20, "the monitor has written the rates")
        return values, model.losses, best.last_model_path

    def test_lightning(self):
        found = []
        for wrap, folder in self.with_and_without():
            _, first, last = self.lightning(wrap, folder / "first", epochs=2)
            with self.resumes_silently():
                values, losses, _ = self.lightning(wrap, folder / "second", epochs=4, resume=last)
            found.append((values, first + losses))
        self.assert_close(*(values for values, _ in found))
        self.assert_near(*(losses for _, losses in found))

    # --- PEFT -------------------------------------------------------------------------------------------------------

    def test_peft_sends_the_adapters_alone(self):
        found = []
        for wrap, folder in self.with_and_without():
            base = gpt2(dropout=0.0)
            before = copy.deepcopy(base.state_dict())
            torch.manual_seed(3)
            model = peft.get_peft_model(base, peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True))
            optimizer = wrap(torch.optim.AdamW(model.parameters(), lr=1e-2))
            for _ in range(3):
                for ids in texts(TEXTS, 2).split(8):
                    optimizer.zero_grad()
                    model(input_ids=ids, labels=ids).loss.backward()
                    optimizer.step()
            if isinstance(optimizer, psd.torch.Optimizer):
                self.assertEqual(len(optimizer.model.shapes), 4)
                self.assertTrue(all("lora_" in name for name in optimizer.model.shapes), optimizer.model.shapes)
                self.assertLess(optimizer.client.bytes_pushed, 13 * (4 * optimizer.model.size + 600))
                optimizer.close()
            model.save_pretrained(folder)
            again = peft.PeftModel.from_pretrained(gpt2(dropout=0.0), folder)
            self.assert_close(peft.get_peft_model_state_dict(again), peft.get_peft_model_state_dict(model), 0.0)
            self.assert_close(model.unload().state_dict(), before, 0.0)
            found.append(peft.get_peft_model_state_dict(again))
        self.assertTrue(all(float(value.abs().max()) > 0 for value in found[0].values()))
        self.assert_close(*found)

    # --- The examples -----------------------------------------------------------------------------------------------

    def example(self, name, *arguments, launcher=()):
        done = subprocess.run([sys.executable, *launcher, EXAMPLES / name, *map(str, arguments)], text=True, capture_output=True, check=False,
                              timeout=processes.WAIT_S * 3, cwd=self.folder, env={**os.environ, "PSD_SERVER": ""})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_examples(self):
        for name in ("hf_trainer.py", "lightning_example.py"):
            with self.subTest(name):
                self.assertIn("psd --set", self.example(name, "--help"))
                daemon = self.daemon(policy="locked", optimizer=None)
                losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", self.example(name, "--server", daemon.address))]
                self.assertEqual(len(losses), 2)
                self.assertLess(losses[1], 0.7 * losses[0])

    def test_hugging_face_by_torchrun(self):
        # The Trainer wraps the model in DistributedDataParallel.
        daemon = self.daemon(policy="sync", optimizer=None)
        said = self.example("hf_trainer.py", "--server", daemon.address, "--epochs", 1,
                            launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"))
        best = re.findall(r"best model of step (\d+): loss ([\d.]+)", said)
        self.assertEqual(len(best), 2, said)
        self.assertEqual(*best)
        self.assertEqual(daemon.status()["shards"][0]["version"], int(best[0][0]))


if __name__ == "__main__":
    processes.main()
