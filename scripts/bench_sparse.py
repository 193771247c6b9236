"""The group of scripts/bench that measures sparse models: reading files of sparse examples."""

import itertools

from bench_group import MIB, Group
from bench_report import Row, gigabytes


class Sparse(Group):
    name = "sparse"
    title = "Files of sparse examples"
    text = """`psd-bench-sparse-files`: one thread, made-up files of 39 features per line, in bytes of text per second of processor time. *check*: every line is
parsed, as at the start of a trainer. *batches*: an epoch in its random order becomes batches of 1,024 examples, hashes of categories
included. *lines*: the file is read and its line ends counted, as by `wc -l`. *scan*: the words of the same bytes in memory are summed.
*zlib*: the compressed file is decompressed, and nothing else."""
    formats = ("criteo", "libsvm")
    figures = ("scan", "lines", "check", "fill", "gz_zlib", "gz_check", "gz_fill")
    target = 0.3e9

    def measurements(self):
        return {f"{form} {figure}": lambda f=form, n=figure: self.figure(f, n) for form, figure in itertools.product(self.formats, self.figures)}

    def figure(self, form, figure):
        """The first figure of a round runs the program."""
        if (form, figure) == (self.formats[0], self.figures[0]):
            self.report = self.programs.sparse_files(64 * MIB)  # less would stay in memory from epoch to epoch
        return self.report[f"{form}_{figure}_bytes_per_s"]

    def rows(self, medians):
        rows = []
        for form in self.formats:
            of = {figure: medians[f"{form} {figure}"] for figure in self.figures}
            rows += [Row.floor(f"{form}, check", of["check"], self.target, gigabytes),
                     Row.floor(f"{form}, batches", of["fill"], self.target, gigabytes),
                     Row.at_least(f"{form}, check", of["check"], "lines", of["lines"], None, gigabytes),
                     Row.at_least(f"{form}, batches", of["fill"], "lines", of["lines"], None, gigabytes),
                     Row.at_least(f"{form}, lines", of["lines"], "scan", of["scan"], None, gigabytes),
                     Row.at_least(f"{form}.gz, check", of["gz_check"], "zlib", of["gz_zlib"], None, gigabytes),
                     Row.at_least(f"{form}.gz, batches", of["gz_fill"], "zlib", of["gz_zlib"], None, gigabytes)]
        return rows
