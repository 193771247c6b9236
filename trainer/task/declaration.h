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

/// What the file of a user's own model says of it beside its code and its values: psd.json, told of in
/// docs/own_models.md. A value type.
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
  std::vector<ColumnSpec> inputs;  ///< those that the method outputs takes; all, where it does not say
  std::vector<TableSpec> tables;
  std::vector<Rows> rows;
  std::vector<DeclaredMetric> metrics;
  LossSpec outputLoss;  ///< of what the method outputs gives
};

/// The error names the place in the document, and `origin`.
Result<ModelDeclaration> readDeclaration(std::string_view json, const std::string& origin);

}  // namespace psd
