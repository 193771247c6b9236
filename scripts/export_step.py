"""A Python class becomes a .pt2: its training step and its score as two graphs that AOTInductor compiles to machine
code."""

import contextlib
import ctypes
import io
import json
import logging
import os
import pathlib
import platform
import re
import tempfile
import warnings
import zlib

# Must match trainer/model/step_package.cc.
FORMAT = 1
DECLARATION, MANIFEST, VALUES = "extra/psd.json", "extra/psd_step.json", "extra/psd_values"
STEP, SCORE = "step", "score"

# CPU features that compilers use automatically, in the spelling of /proc/cpuinfo.
CPU_FEATURES = re.compile(r"pni|ssse3|sse4_[12]|avx\w*|fma|f16c|bmi[12]|abm|popcnt|movbe|asimd\w*|sve\w*|i8mm|bf16")
COLUMN = re.compile(r"(f32|f64|i32|i64|u8)(?:\[([\w,]*)\])?(?: below (\d+))?")
TRACED_BATCH = 6
COMPARED_BATCHES = (1, 2, 3, 8, 33)
INDEXING = ("embedding", "nll", "cross_entropy", "index", "gather", "scatter", "take", "one_hot", "bincount")  # in the names of operations
TOLERANCE = 1e-4  # of the largest value of a tensor: sums in another order


class Refused(Exception):
    """A human-readable line."""


def first_line(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Inputs:
    """The inputs of forward besides the parameters: columns, then rows of tables. Owned by one thread."""

    def __init__(self, declaration):
        self.shapes, self.kinds = {}, {}
        for name, text in declaration["columns"].items():
            match = COLUMN.fullmatch(text if isinstance(text, str) else "")
            if not match:
                raise Refused(f"columns.{name}: '{text}' is not a column type; expected f32, f64, i32, i64 or u8, then [extents], then below N")
            kind, extents, bound = match.groups()
            if "any" in (extents or "").split(","):
                raise Refused(f"columns.{name}: '{text}' has an extent of any length, and in a .pt2 all but the batch are fixed; "
                              "expected a number, or -o OUT.pt")
            self.shapes[name] = [int(extent) for extent in extents.split(",")] if extents else []
            self.kinds[name] = kind, int(bound or 0)
        self.rows = []
        tables = declaration.get("tables", {})
        if not isinstance(tables, dict):
            raise Refused(f"tables is a {type(tables).__name__}; expected a dict of tables by name")
        for key, table in tables.items():
            if not isinstance(table, dict) or not isinstance(table.get("dim"), int) or not isinstance(table.get("rows"), dict):
                raise Refused(f'tables.{key}: expected {{"dim": 8, "rows": {{"what forward takes": "the column with its ids"}}}}')
            for name, column in table["rows"].items():
                if column not in self.shapes:
                    raise Refused(f"tables: '{column}', which has the ids of '{name}', is not a column")
                self.shapes[name] = [*self.shapes[column], table["dim"]]
                self.kinds[name] = "f32", 0
                self.rows.append(name)
        self.names = list(self.shapes)

    def draw(self, batch):
        """Synthetic inputs: numbers from 0 to 1, integers below the bound of the column."""
        import torch
        types = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8}
        drawn = []
        for name in self.names:
            kind, bound = self.kinds[name]
            shape = [batch, *self.shapes[name]]
            if kind[0] == "f":
                drawn.append(torch.rand(shape, dtype=types[kind]))
                continue
            drawn.append(torch.randint(bound or 100, shape, dtype=types[kind]))
            if bound and drawn[-1].numel():
                drawn[-1].view(-1)[0] = bound - 1  # so that forward must accept it
        return drawn


def state_of(model):
    """Everything that is not trained: tensors, and the plain attributes of modules."""
    import torch
    plain = (bool, int, float, str, list, dict, tuple, type(None))
    state = {name: tensor.detach().clone() for name, tensor in [*model.named_buffers(), *model.named_parameters()] if not tensor.requires_grad}
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_") and name != "training" and isinstance(value, plain):
                state[f"{place}.{name}".lstrip(".")] = repr(value)
    return state, torch.equal


def check_state(model, before):
    state, equal = before
    for name, value in state_of(model)[0].items():
        kept = state.get(name)
        if kept is None or (equal(kept, value) if hasattr(value, "shape") else kept == value):
            continue
        raise Refused(f"forward changed '{name}', which is not a parameter: trainers do not share it, so the model would be scored wrongly; "
                      "expected a module that only reads it")


def check_outputs(outputs, declaration, training):
    import torch
    names = {"loss", *declaration.get("metrics", {})}
    if not isinstance(outputs, dict) or not all(isinstance(value, torch.Tensor) for value in outputs.values()):
        raise Refused("forward returned no dict of tensors")
    if "loss" not in outputs:
        raise Refused(f"forward returned no 'loss'; it returned {', '.join(repr(name) for name in outputs) or 'nothing'}")
    loss = outputs["loss"]
    if loss.dim() != 0 or not loss.is_floating_point():
        raise Refused(f"forward returned 'loss' as {loss.dtype} of {loss.dim()} dimensions; expected a scalar of f32")
    if not loss.requires_grad:
        raise Refused("forward returned a 'loss' that does not depend on any parameter")
    unknown = next((name for name in outputs if name not in names | {"loss.weight"}), None)
    if unknown is not None:
        raise Refused(f"forward returned '{unknown}', which is not a metric of the class")
    missing = next((name for name in names if name not in outputs), None)
    if missing is not None and not training:
        raise Refused(f"forward returned no '{missing}', which is a metric of the class")


@contextlib.contextmanager
def complaining(what):
    """Reports PyTorch's errors as one line."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # it prints graphs, too
            yield
    except Refused:
        raise
    except Exception as error:  # anything that tracing a user's code raises
        if "Constraints violated" in str(error) and "dynamic" in str(error):
            raise Refused("forward makes a constant of the size of the batch, as float(x.size(0)) does; "
                          "expected tensors, as torch.ones_like(x).sum()") from None
        raise Refused(f"{what}: {first_line(error)}") from None


class Step:
    """The two graphs of a model, (parameters, inputs) -> (loss, gradients) and -> outputs. Owned by one thread."""

    def __init__(self, model, declaration):
        self.model, self.inputs = model, Inputs(declaration)
        self.names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.values = [parameter.detach() for parameter in self.trained]
        if not self.trained:
            raise Refused("the class has no parameter of its own that is trained, which a .pt2 needs beside its tables; expected -o OUT.pt")
        self.score_names = []
        for mode in (False, True):
            model.train(mode)
            before = state_of(model)
            with complaining("forward failed with synthetic data"):
                outputs = self.call(self.inputs.draw(TRACED_BATCH))
            check_state(model, before)
            check_outputs(outputs, declaration, mode)
            self.score_names = self.score_names or list(outputs)

    def call(self, given):
        return self.model(dict(zip(self.inputs.names, given)))

    def export(self, module, *parameters):
        """A graph with any batch size, for a module of inputs, or of parameters and inputs."""
        import torch
        shapes = [*([{} for _ in each] for each in parameters), [{0: torch.export.Dim.DYNAMIC} for _ in self.inputs.names]]
        given = self.inputs.draw(TRACED_BATCH)
        exported = torch.export.export(module, (*parameters, given), dynamic_shapes=tuple(shapes), strict=False)
        for limits in exported.range_constraints.values():
            if limits.lower > 2 or limits.upper < 2**31:
                raise Refused(f"forward depends on the size of the batch, from {limits.lower} to {limits.upper}: other sizes would need another graph")
        return exported

    def trace(self, training, outputs_of):
        """The graph of outputs_of(forward, parameters, inputs), including autograd: torch.export does not support it,
        so the exported forward is traced with it, and exported again."""
        import torch
        from torch._dispatch.python import enable_python_dispatcher
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.fx.experimental.proxy_tensor import make_fx

        class Forward(torch.nn.Module):
            def __init__(self, step):
                super().__init__()
                self.model, self.names = step.model, step.inputs.names

            def forward(self, given):
                return self.model(dict(zip(self.names, given)))

        class Traced(torch.nn.Module):
            def __init__(self, traced):
                super().__init__()
                self.traced = traced

            def forward(self, parameters, given):
                return self.traced(parameters, given)

        self.model.train(training)
        with complaining(f"torch.export does not take forward in {'training' if training else 'scoring'}"):
            exported = self.export(Forward(self))
            check_indices(exported, self.inputs)
            fakes = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"]
            mode = next(value for value in fakes if isinstance(value, FakeTensor)).fake_mode
            mode.allow_non_fake_inputs = True
            module = frozen(exported.module(check_guards=False))
            places = {id(parameter): place for place, parameter in enumerate(self.trained)}
            aliases = {f"model.{name}": places[id(parameter)] for name, parameter in self.model.named_parameters(remove_duplicate=False)
                       if id(parameter) in places}

            def bound(parameters):
                named = {name: parameters[place] for name, place in aliases.items()}
                return lambda given: torch.func.functional_call(module, named, (given,))

            with mode, enable_python_dispatcher(), torch.set_grad_enabled(training):
                traced = make_fx(lambda parameters, given: outputs_of(bound, parameters, given), tracing_mode="real", _allow_non_fake_inputs=True)(
                    [mode.from_tensor(value, static_shapes=True) for value in self.values], fakes[-len(self.inputs.names):])
            with torch.no_grad():
                return self.export(Traced(traced), self.values)

    def step_of(self, bound, parameters, given):
        """The loss and its gradients with respect to the parameters and rows."""
        import torch
        parameters = [each.detach().requires_grad_() for each in parameters]
        given = [each.detach().requires_grad_() if name in self.inputs.rows else each for name, each in zip(self.inputs.names, given)]
        loss = bound(parameters)(given)["loss"]
        rows = [each for name, each in zip(self.inputs.names, given) if name in self.inputs.rows]
        return [loss.detach(), *torch.autograd.grad(loss, [*parameters, *rows], allow_unused=True, materialize_grads=True)]

    def score_of(self, bound, parameters, given):
        outputs = bound(parameters)(given)
        return [outputs[name].detach() for name in self.score_names]

    def eager(self, graph, given):
        """The results of the class itself."""
        import torch
        self.model.train(graph == STEP)
        if graph == SCORE:
            outputs = self.call(given)
            return [outputs[name].detach() for name in self.score_names]
        given = [each.detach().requires_grad_() if name in self.inputs.rows else each for name, each in zip(self.inputs.names, given)]
        loss = self.call(given)["loss"]
        rows = [each for name, each in zip(self.inputs.names, given) if name in self.inputs.rows]
        return [loss.detach(), *torch.autograd.grad(loss, [*self.trained, *rows], allow_unused=True, materialize_grads=True)]


def check_indices(exported, inputs):
    """A compiled step counts negative indices from the end, and ends the program on one that is too large: a column
    that is used as an index must declare its bound, so that data are checked against it."""
    import torch
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    comes_from = {node: {name} for node, name in zip(placeholders[-len(inputs.names):], inputs.names) if inputs.kinds[name][0][0] != "f"}
    for node in exported.graph.nodes:
        columns = set().union(*(comes_from.get(argument, set()) for argument in node.all_input_nodes))
        if node.op != "call_function" or not columns:
            continue
        name = getattr(node.target, "__name__", "")
        unbounded = next((column for column in sorted(columns) if not inputs.kinds[column][1]), None)
        if unbounded is not None and any(word in name for word in INDEXING):
            raise Refused(f"columns.{unbounded}: forward uses it as an index ({name.partition('.')[0]}), and a compiled step does not look whether "
                          f"one is in range; expected '{inputs.kinds[unbounded][0]} below N', to which data are held")
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype != torch.bool:
            comes_from[node] = columns


def frozen(module):
    """Parameters that are not trained become buffers, which tracing keeps as constants."""
    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(each, name)
                each.register_buffer(name, parameter.detach())
    return module


def draws_by_chance(exported):
    import torch
    return any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in exported.graph.nodes)


def compare(what, batch, eager, graph, names):
    """A graph records only the branches that were taken: it is compared with the class at several batch sizes."""
    import torch
    for name, expected, found in zip(names, eager, graph):
        scale = expected.abs().max().item() if expected.numel() else 0
        if expected.shape == found.shape and torch.allclose(expected.double(), found.double(), rtol=TOLERANCE, atol=TOLERANCE * scale + 1e-7, equal_nan=True):
            continue
        raise Refused(f"{what} gives another '{name}' than the class for a batch of {batch}: does forward depend on the size of the batch?")


def compile_graph(exported):
    import torch
    # The program that loads it has LibTorch's CPU part; libtorch.so would require the one for CUDA. --threads is set at
    # run time. Random numbers come from LibTorch's generator, which --seed sets: see decision 0047.
    options = {"aot_inductor.package": True, "aot_inductor.link_libtorch": False, "aot_inductor.precompile_headers": False,
               "cpp.dynamic_threads": True, "fallback_random": True}
    # Determined in advance, and cached: Inductor's test of vector instructions needs libtorch.so, and without them code
    # is slower than a .pt.
    with torch.no_grad(), complaining("AOTInductor does not compile it"):
        torch._inductor.cpu_vec_isa.pick_vec_isa()
        positional, named = exported.example_inputs
        return torch._inductor.aot_compile(exported.module(check_guards=False), positional, named, options=options)


def cpu_features():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.M)
    return sorted(flag for flag in set(flags.group(1).split() if flags else []) if CPU_FEATURES.fullmatch(flag))


def write_package(out, step, declaration, files):
    import torch
    from torch.export.pt2_archive._package import PT2ArchiveWriter
    records = {f"data/aotinductor/{graph}/{pathlib.Path(file).name}": pathlib.Path(file).read_bytes() for graph in files for file in files[graph]}
    records[DECLARATION] = declaration.encode()
    records[VALUES] = b"".join(value.contiguous().numpy().tobytes() for value in step.values)
    manifest = {"format": FORMAT, "torch": torch.__version__.partition("+")[0], "machine": platform.machine(), "cpu": cpu_features(),
                "parameters": {name: list(value.shape) for name, value in zip(step.names, step.values)},
                "outputs": step.score_names,
                "crc32": {name: zlib.crc32(data) for name, data in records.items()}}
    records[MANIFEST] = json.dumps(manifest, indent=1).encode()
    try:
        with PT2ArchiveWriter(str(out)) as writer:
            for name, data in records.items():
                writer.write_bytes(name, data)
    except RuntimeError as error:
        raise Refused(f"{out} cannot be written: {first_line(error)}") from None


def load_graph(files):
    import torch
    library = next(file for file in files if file.endswith(".so"))
    return torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)


def export_step(model, declaration, out):
    """Writes a .pt2. `declaration`: psd.json."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    logging.disable(logging.CRITICAL)  # PyTorch's messages about what a machine lacks
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="psd-export-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        import torch
        import torch._inductor
        import torch._inductor.cpu_vec_isa
        for name, parameter in model.named_parameters():
            if parameter.dtype != torch.float32 and parameter.requires_grad:
                raise Refused(f"parameter '{name}' is of {parameter.dtype}; expected f32")
        step = Step(model, json.loads(declaration))
        graphs = {STEP: step.trace(True, step.step_of), SCORE: step.trace(False, step.score_of)}
        names = {STEP: ["loss", *step.names, *step.inputs.rows], SCORE: step.score_names}

        def compare_all(what, run):
            for graph in graphs:
                for batch in COMPARED_BATCHES:
                    given = step.inputs.draw(batch)
                    torch.manual_seed(batch)
                    try:
                        expected = step.eager(graph, given)
                    except Exception as error:  # anything that a user's code raises
                        if batch == 1:
                            continue  # BatchNorm has no statistics of one sample, and a run's last batch may be dropped
                        raise Refused(f"forward failed with synthetic data in a batch of {batch}: {first_line(error)}") from None
                    torch.manual_seed(batch)
                    with torch.no_grad(), complaining(f"{what} of the {graph} failed for a batch of {batch}"):
                        found = run[graph](step.values, given)
                    compare(f"{what} of the {graph}", batch, expected, found, names[graph])

        compare_all("the graph", {graph: exported.module(check_guards=False) for graph, exported in graphs.items()})
        files = {graph: compile_graph(exported) for graph, exported in graphs.items()}
        # The libraries that it needs are in the process that loads it, where their symbols are visible.
        ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
        runners = {graph: load_graph(files[graph]) for graph in graphs if not draws_by_chance(graphs[graph])}
        graphs = {graph: graphs[graph] for graph in runners}  # random numbers are drawn in another order
        compare_all("the compiled graph", {graph: lambda values, given, run=runner: run.run([*values, *given]) for graph, runner in runners.items()})
        write_package(out, step, declaration, files)
