#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include "trainer/client/api/row_batch.h"

namespace psd::python {

/// The rows that one step uses, for Python. Arrays share the memory of the batch and keep it alive; make()
/// starts a new batch and leaves existing arrays unchanged. With the GIL.
class PythonRows {
 public:
  /// `shards`, `daemons`: see RowBatch.
  PythonRows(std::vector<TableSpec> tables, uint32_t shards, uint32_t daemons)
      : tables_(std::move(tables)), shards_(shards), daemons_(daemons) {}

  /// `features`: pairs of a table's name and ids.
  void make(const std::vector<std::pair<std::string, nanobind::object>>& features);

  nanobind::object ids(const std::string& table) const;
  nanobind::object places(size_t feature) const;
  nanobind::object values(const std::string& table) const;
  nanobind::object gradients(const std::string& table) const;
  uint64_t count() const { return batch_ ? batch_->rowCount() : 0; }

  /// The current batch. A holder keeps its memory unchanged by later make() calls.
  const std::shared_ptr<RowBatch>& shared() const;

 private:
  RowBatch& batch() const { return *shared(); }
  uint32_t indexOf(const std::string& table) const;
  nanobind::object matrix(uint32_t table, std::span<float> values) const;

  const std::vector<TableSpec> tables_;
  const uint32_t shards_, daemons_;
  std::shared_ptr<RowBatch> batch_;  // null before the first make()
  size_t features_ = 0;
};

}  // namespace psd::python
