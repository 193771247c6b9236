"""Run by scripts/export_model: a Python class becomes a file of TorchScript or machine code that declares its columns."""

import argparse
import importlib.util
import json
import pathlib
import signal
import sys
import warnings

from export_step import Refused, export_step, first_line

DECLARED = ("columns", "inputs", "output_loss", "tables", "metrics")


def load_class(path, name):
    import torch  # takes seconds, so that errors in the command line are reported first
    if not path.is_file():
        raise Refused(f"{path}: No such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # torch.jit.script looks there for what the class uses
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # anything that a user's code raises
        raise Refused(f"{path}: {type(error).__name__}: {error}".splitlines()[0]) from None
    found = getattr(module, name, None)
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        raise Refused(f"{path}: '{name}' is not a torch.nn.Module class in that file")
    return found


def read_arguments(pairs):
    arguments = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise Refused(f"'{pair}' is not an argument; expected KEY=VALUE")
        try:
            arguments[key] = json.loads(text)
        except json.JSONDecodeError:
            arguments[key] = text
    return arguments


def declaration_of(model):
    """psd.json; declarations that psd-trainer would reject are rejected here if that is easy."""
    for name, _ in model.named_buffers():
        place, _, kind = name.rpartition(".")
        if kind == "num_batches_tracked":
            raise Refused(f"{type(model).__name__} has '{place}', which keeps running statistics as BatchNorm does: trainers do not share them; "
                          "expected GroupNorm, LayerNorm, or track_running_stats=False")
    declaration = {key: getattr(model, key) for key in DECLARED if hasattr(model, key)}
    columns = declaration.get("columns")
    if not isinstance(columns, dict) or not columns:
        raise Refused(f"{type(model).__name__} has no columns; expected columns = {{\"x\": \"f32[3]\", …}}, what forward takes of each sample")
    try:
        return json.dumps(declaration, indent=1)
    except TypeError as error:
        raise Refused(f"{', '.join(DECLARED[:-1])} and {DECLARED[-1]} of {type(model).__name__} are not plain dicts and lists: {error}") from None


def script(model, target):
    import torch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        try:
            return torch.jit.script(model)
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            place = next((f" ({line.removeprefix('File ')})" for line in lines if line.startswith("File ")), "")
            raise Refused(f"{target}: torch.jit.script rejects it: {lines[0]}{place}") from None


def save_script(model, target, out, declaration):
    import torch
    scripted = script(model, target)
    try:
        torch.jit.save(scripted, str(out), _extra_files={"psd.json": declaration})
    except RuntimeError as error:
        raise Refused(f"{out}: {str(error).splitlines()[0]}") from None


def save_step(model, target, out, declaration):
    try:
        export_step(model, declaration, out)
    except Refused as refusal:
        raise Refused(f"{target}: {refusal}") from None
    except OSError as error:
        raise Refused(f"{error.filename or out}: {error.strerror}") from None


def export(target, out, seed, pairs):
    file, colon, name = target.rpartition(":")
    if not colon:
        raise Refused(f"'{target}' names no class; expected FILE.py:CLASS")
    out = pathlib.Path(out or pathlib.Path(file).stem + ".pt")
    if out.suffix not in (".pt", ".pt2"):
        raise Refused(f"'{out}' does not end with .pt or .pt2, which psd-trainer requires")
    if out.is_dir() or not out.parent.is_dir():
        raise Refused(f"{out}: {'Is a directory' if out.is_dir() else 'No such folder'}")
    arguments = read_arguments(pairs)
    try:
        import torch
    except ModuleNotFoundError:
        raise Refused(f"{sys.executable} has no torch; run scripts/setup, or set PSD_PYTHON to a python3 that has it") from None
    torch.manual_seed(seed)
    try:
        model = load_class(pathlib.Path(file), name)(**arguments)
    except Refused:
        raise
    except Exception as error:  # of an unknown, missing or invalid argument
        raise Refused(f"{target}: {first_line(error)}") from None
    model.train()
    declaration = declaration_of(model)
    save = save_step if out.suffix == ".pt2" else save_script
    save(model, target, out, declaration)
    tensors = [parameter for parameter in model.parameters() if parameter.requires_grad]
    print(f"{out}: {sum(tensor.numel() for tensor in tensors)} parameters in {len(tensors)} tensors")


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see scripts/{self.prog} --help\n")


def main():
    parser = OneLineParser(prog="export_model", usage="scripts/export_model FILE.py:CLASS [-o OUT.pt|OUT.pt2] [--seed N] [KEY=VALUE…]")
    parser.add_argument("target")
    parser.add_argument("-o", dest="out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_intermixed_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that unfinished files are removed
    try:
        export(options.target, options.out, options.seed, options.arguments)
    except Refused as refusal:
        sys.exit(f"export_model: {refusal}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
