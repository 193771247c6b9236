#include "trainer/loop/fit.h"

#include <algorithm>

#include <fmt/format.h>

namespace psd {

Status checkFit(const Model& model, const Dataset& dataset) {
  const std::vector<ColumnSpec> inputs = model.inputs();
  const std::vector<ColumnSpec>& columns = dataset.columns();
  for (const ColumnSpec& input : inputs) {
    const auto column = std::ranges::find(columns, input.name, &ColumnSpec::name);
    if (column != columns.end() && input.takes(*column)) continue;
    const std::string unread = column == columns.end() ? dataset.skipReason(input.name) : std::string();
    if (!unread.empty()) {
      return {ErrorCode::invalidArgument,
              fmt::format("column '{}' cannot be read: {}; the model {} takes {}", input.name, unread,
                          model.spec().name, describeColumns(inputs))};
    }
    const std::string what = column == columns.end()
                                 ? "is not there; expected " + input.typeText()
                                 : "is " + column->typeText() + "; expected " + input.typeText();
    return {ErrorCode::invalidArgument,
            fmt::format("column '{}' {}: the data ({}) has {}, but the model {} takes {}", input.name, what,
                        dataset.describe(), describeColumns(columns), model.spec().name,
                        describeColumns(inputs))};
  }
  return {};
}

Status checkBatchSize(const Dataset& dataset, uint64_t samples) {
  if (samples <= dataset.batchSizeMax()) return {};
  return {
      ErrorCode::invalidArgument,
      fmt::format("--batch-size: {} samples of {} could have too many features for a batch; expected at most "
                  "{} samples",
                  samples, dataset.describe(), dataset.batchSizeMax())};
}

}  // namespace psd
