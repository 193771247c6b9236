#include "trainer/task/declaration.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include <fmt/format.h>

#include "common/config/json_file.h"
#include "common/config/object_reader.h"
#include "common/text/text.h"
#include "trainer/task/column_text.h"

namespace psd {
namespace {

constexpr size_t kColumnsMax = 1000;

constexpr std::array<std::string_view, 5> kMetricKinds{"mean", "share", "exponential", "root", "auc"};
constexpr std::array<std::string_view, 3> kRowKinds{"zero", "uniform", "normal"};
/// JSON keys of a score other than its metrics.
constexpr std::array<std::string_view, 6> kReservedNames{"loss", "seconds", "model",
                                                         "data", "samples", "versions"};

template <size_t count>
size_t indexOf(const std::array<std::string_view, count>& names, const std::string& name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

template <size_t count>
std::vector<std::string_view> listOf(const std::array<std::string_view, count>& names) {
  return {names.begin(), names.end()};
}

const ColumnSpec* findColumn(const ModelDeclaration& declaration, const std::string& name) {
  const auto found = std::ranges::find(declaration.columns, name, &ColumnSpec::name);
  return found == declaration.columns.end() ? nullptr : &*found;
}

void readColumns(ObjectReader root, ModelDeclaration& declaration) {
  if (!root.hasObject("columns")) {
    root.fail("columns", "must be an object: of each column that the model takes, its type");
  }
  ObjectReader columns = root.object("columns");
  if (columns.keys().size() > kColumnsMax) {
    return root.fail("columns",
                     fmt::format("names {} columns, and may name {}", columns.keys().size(), kColumnsMax));
  }
  for (const std::string& name : columns.keys()) {
    auto column = readColumn(name, columns.text(name, ""));
    if (!column.ok()) {
      columns.fail(name, column.message());
    } else {
      declaration.columns.push_back(*std::move(column));
    }
  }
  if (declaration.columns.empty()) root.fail("columns", "must name at least one column");
}

/// Reads the columns that the method `outputs` takes.
void readInputs(ObjectReader root, ModelDeclaration& declaration) {
  if (!root.has("inputs")) {
    declaration.inputs = declaration.columns;
    return;
  }
  for (const std::string& name : root.texts("inputs", {})) {
    const ColumnSpec* column = findColumn(declaration, name);
    if (column == nullptr || std::ranges::count(declaration.inputs, name, &ColumnSpec::name) != 0) {
      return root.fail("inputs", fmt::format("must name columns of `columns`, each once; '{}' is none",
                                             printable(name, 60)));
    }
    declaration.inputs.push_back(*column);
  }
  if (declaration.inputs.empty()) root.fail("inputs", "must name at least one column");
}

/// Reads the inputs that are rows of a table, and the columns of their ids.
void readRows(ObjectReader table, ModelDeclaration& declaration) {
  ObjectReader rows = table.object("rows");
  const auto taken = [&](const std::string& name) {
    return findColumn(declaration, name) != nullptr ||
           std::ranges::count(declaration.rows, name, &ModelDeclaration::Rows::name) != 0;
  };
  for (const std::string& name : rows.keys()) {
    const std::string column = rows.text(name, "");
    const ColumnSpec* ids = findColumn(declaration, column);
    if (taken(name) || taken(name + ".ids") ||
        (name.ends_with(".ids") && taken(name.substr(0, name.size() - 4)))) {
      rows.fail(name, "is the name of another input of the model, or that with .ids");
    } else if (ids == nullptr || ids->type != ElementType::i64) {
      rows.fail(name, fmt::format("must be one of the columns of i64, in which the ids are, not '{}'",
                                  printable(column, 60)));
    }
    declaration.rows.push_back({name, column, static_cast<uint32_t>(declaration.tables.size())});
  }
  if (rows.keys().empty())
    table.fail("rows", "must name at least one input: its name, and the column of its ids");
}

void readTables(ObjectReader root, ModelDeclaration& declaration) {
  ObjectReader tables = root.object("tables");
  for (const std::string& name : tables.keys()) {
    ObjectReader table = tables.object(name);
    TableSpec spec{name, static_cast<uint32_t>(table.integer("dim", 0, 1, kTableDimMax)), {}};
    if (!table.has("dim"))
      table.fail("dim", fmt::format("is missing: values of a row, 1 to {}", kTableDimMax));
    const std::string kind = table.choice("initial", "uniform", listOf(kRowKinds));
    spec.initial.kind = static_cast<RowInitial::Kind>(indexOf(kRowKinds, kind));
    spec.initial.scale =
        static_cast<float>(table.number("scale", RowInitial::kScale, {.min = 0, .max = 1e6}));
    spec.initial.seed =
        table.integer("seed", declaration.tables.size() + 1, 0, std::numeric_limits<int64_t>::max());
    readRows(table, declaration);
    declaration.tables.push_back(std::move(spec));
  }
}

void readMetrics(ObjectReader root, ModelDeclaration& declaration) {
  ObjectReader metrics = root.object("metrics");
  const auto isPlain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (const std::string& name : metrics.keys()) {
    const std::string kind = metrics.choice(name, "mean", listOf(kMetricKinds));
    if (name.empty() || !std::ranges::all_of(name, isPlain) ||
        indexOf(kReservedNames, name) != kReservedNames.size()) {
      metrics.fail(name, fmt::format("is not a metric name: expected letters, digits and _, and none of {}",
                                     joined(kReservedNames, ", ")));
    }
    declaration.metrics.push_back({name, static_cast<MetricKind>(indexOf(kMetricKinds, kind))});
  }
}

/// Reads the loss that a trainer computes from the result of the method `outputs`.
void readOutputLoss(ObjectReader root, ModelDeclaration& declaration) {
  if (!root.has("output_loss")) return;
  ObjectReader in = root.object("output_loss");
  LossSpec& loss = declaration.outputLoss;
  loss.kind =
      static_cast<LossKind>(indexOf(kLossKinds, in.choice("kind", kLossKinds.front(), listOf(kLossKinds))));
  loss.output = in.text("output", "");
  loss.penalty = in.text("penalty", "");
  const std::string target = in.text("target", loss.target.name);
  const ColumnSpec* column = findColumn(declaration, target);
  if (column == nullptr) {
    return in.fail("target", fmt::format("must be one of the columns, not '{}'", printable(target, 60)));
  }
  loss.target = *column;
  if (const Status fits = checkLoss(loss); !fits.ok()) root.fail("output_loss", fits.message());
}

}  // namespace

Result<ModelDeclaration> readDeclaration(std::string_view json, const std::string& origin) {
  PSD_ASSIGN_OR_RETURN(auto document, parseJson(json, origin));
  ObjectReader root(std::move(document));
  ModelDeclaration declaration;
  readColumns(root, declaration);
  readInputs(root, declaration);
  readTables(root, declaration);
  readMetrics(root, declaration);
  readOutputLoss(root, declaration);
  if (const Status read = root.finish(); !read.ok()) {
    return Error{ErrorCode::invalidArgument, origin + ": " + read.message()};
  }
  return declaration;
}

}  // namespace psd
