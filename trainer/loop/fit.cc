#include "trainer/loop/fit.h"

#include <algorithm>

#include <fmt/format.h>

namespace psd {

Status checkFit(const Model& model, const Dataset& dataset) {
  const std::vector<ColumnSpec> inputs = model.inputs();
  const std::vector<ColumnSpec>& columns = dataset.columns();
  const auto isThere = [&](const ColumnSpec& input) {
    return std::any_of(columns.begin(), columns.end(),
                       [&](const ColumnSpec& column) { return input.takes(column); });
  };
  if (std::all_of(inputs.begin(), inputs.end(), isThere)) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("the data ({}) has {}, but the model {} takes {}", dataset.describe(),
                      describeColumns(columns), model.spec().name, describeColumns(inputs))};
}

}  // namespace psd
