#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "trainer/task/batch.h"
#include "trainer/task/loss_spec.h"
#include "trainer/task/score.h"

namespace psd {

/// The metadata of a user's own model: psd.json, described in docs/guides/own_models.md. A value type.
struct ModelDeclaration {
  /// An input of the model: the rows of a table by the ids in a column.
  struct Rows {
    std::string name;
    std::string column;  ///< i64; one of `columns`
    uint32_t table = 0;  ///< index into `tables`
  };
  struct DeclaredMetric {
    std::string name;
    MetricKind kind = MetricKind::mean;
  };

  std::vector<ColumnSpec> columns;
  std::vector<ColumnSpec> inputs;  ///< columns that the method `outputs` takes; default: all
  std::vector<TableSpec> tables;
  std::vector<Rows> rows;
  std::vector<DeclaredMetric> metrics;
  LossSpec outputLoss;  ///< loss of the result of the method `outputs`
};

/// Errors name the key in the document, and `origin`.
Result<ModelDeclaration> readDeclaration(std::string_view json, const std::string& origin);

}  // namespace psd
