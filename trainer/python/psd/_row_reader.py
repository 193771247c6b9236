"""Rows of tables after the optimizer of their model is closed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np
import torch

from . import _psd
from .client import Client, Model
from .errors import Error

if TYPE_CHECKING:
    from ._embedding import TableRows

NOTHING = np.zeros(0, np.float32)
"""The array for a pull of rows alone."""


class RowReader:
    """Reads the rows of a model over a connection of its own, which the first read opens. Used by one thread at a
    time."""

    def __init__(self, model: Model, trainer: Client):
        """`trainer`: a client, which may close."""
        self._model, self._open = model, trainer._open_reader
        self._client: Client | None = None

    def read(self, table: str, ids: torch.Tensor) -> _psd.Rows:
        try:
            if self._client is None:
                opened = self._open()
                try:
                    opened.observe(self._model)
                except BaseException:
                    opened.close()
                    raise
                self._client = opened
            rows = self._client.rows()
            rows.make([(table, ids)])
            if len(rows.ids(table)):
                self._client.begin_pull(NOTHING, rows).wait()
            return rows
        except Error as error:
            self.close()
            raise type(error)(f"embedding '{table}' reads its rows at the daemon, also after close() of the optimizer: {error}",
                              error.retryable) from error

    def close(self) -> None:
        """Closes the connection; the next read opens another."""
        if self._client is not None:
            self._client.close()
            self._client = None


class RowSource:
    """Where the modules of a table, and their copies, find its rows: at the optimizer while that exists, and after its
    close() for as long as one of them exists."""

    def __init__(self, rows: TableRows):
        self._rows = weakref.ref(rows)
        self._kept: TableRows | None = None

    def rows(self) -> TableRows | None:
        return self._rows()

    def keep(self) -> None:
        self._kept = self._rows()
