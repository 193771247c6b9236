"""Run by scripts/convert_data: columns of a Parquet file become tensors of a safetensors file."""

import argparse
import json
import os
import struct
import sys

try:
    import numpy
    import pyarrow
    from pyarrow import parquet
    MISSING = None
except ModuleNotFoundError as error:
    MISSING = error.name


class Refused(Exception):
    """A human-readable line."""


def flat_array(name, values):
    """An array of numbers or booleans, without nulls."""
    kind = values.type
    if values.null_count:
        raise Refused(f"column '{name}' has {values.null_count} empty values; expected a number in each row")
    if pyarrow.types.is_boolean(kind):
        return values.to_numpy(zero_copy_only=False).astype(numpy.uint8)
    if pyarrow.types.is_uint64(kind) and len(values) and values.to_numpy().max() > numpy.iinfo(numpy.int64).max:
        raise Refused(f"column '{name}' has numbers beyond i64")
    if pyarrow.types.is_integer(kind):
        return values.to_numpy(zero_copy_only=False).astype("<i8")
    if pyarrow.types.is_floating(kind):
        return values.to_numpy(zero_copy_only=False).astype("<f4")
    raise Refused(f"column '{name}' is of {kind}; expected numbers, booleans, or lists of these (select other columns with --columns)")


def column_array(name, chunked):
    values = chunked.combine_chunks()
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.chunk(0) if values.num_chunks else pyarrow.array([], values.type)
    kind = values.type
    if not (pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)):
        return flat_array(name, values)
    if values.null_count:
        raise Refused(f"column '{name}' has {values.null_count} empty values; expected a list in each row")
    lengths = set(values.value_lengths().to_pylist())
    if len(lengths) != 1:
        raise Refused(f"column '{name}' has lists of {min(lengths)} to {max(lengths)} values; expected lists of one length")
    return flat_array(name, values.flatten()).reshape(len(values), lengths.pop())


def write_safetensors(path, columns):
    names = {numpy.dtype("<f4"): "F32", numpy.dtype("<i8"): "I64", numpy.dtype("u1"): "U8"}
    header, offset = {}, 0
    for name, array in columns.items():
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    unfinished = f"{path}.{os.getpid()}.tmp"
    with open(unfinished, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in columns.values():
            file.write(numpy.ascontiguousarray(array).data)
    os.replace(unfinished, path)


def convert(source, target, wanted):
    if not target.endswith(".safetensors"):
        raise Refused(f"'{target}' does not end with .safetensors, which psd-trainer requires")
    try:
        table = parquet.read_table(source)
    except (OSError, pyarrow.ArrowException) as error:
        raise Refused(f"{source}: {str(error).splitlines()[0]}") from None
    for name in wanted or ():
        if name not in table.column_names:
            raise Refused(f"{source}: no column '{name}'; there are {', '.join(table.column_names)}")
    if not table.num_rows:
        raise Refused(f"{source}: no rows")
    columns = {name: column_array(name, table[name]) for name in wanted or table.column_names}
    write_safetensors(target, columns)
    print(f"{target}: {table.num_rows} rows of {', '.join(columns)}")


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see scripts/{self.prog} --help\n")


def main():
    parser = OneLineParser(prog="convert_data", usage="scripts/convert_data IN.parquet OUT.safetensors [--columns A,B,…]")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--columns")
    options = parser.parse_args()
    if MISSING:
        sys.exit(f"convert_data: python has no {MISSING}; pip install numpy pyarrow")
    try:
        convert(options.source, options.target, options.columns and options.columns.split(","))
    except Refused as refusal:
        sys.exit(f"convert_data: {refusal}")


if __name__ == "__main__":
    main()
