#include "server/checkpoint/table_export.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "common/safetensors/safetensors.h"
#include "common/text/text.h"
#include "server/checkpoint/saved_rows.h"

namespace psd {
namespace {

/// Writes the rows of a table of a checkpoint. Owned by one thread.
class TableWriter {
 public:
  TableWriter(Env& env, const Checkpoint& checkpoint, uint32_t table)
      : env_(env), checkpoint_(checkpoint), table_(table), spec_(checkpoint.manifest.model.tables[table]) {}

  Status countRows() {
    return visit({}, [&](const SavedRows& rows) {
      exported_.rows += rows.size();
      return Status();
    });
  }
  const ExportedTable& exported() const { return exported_; }

  Status writeSafetensors(WritableFile& file) {
    ModelSpec content;
    content.tensors = {{"keys", DType::u64, {exported_.rows}},
                       {"values", DType::f32, {exported_.rows, spec_.dim}}};
    PSD_RETURN_IF_ERROR(
        writeSafetensorsHead(file, content, {{"table", spec_.name}, {"writer", "psd " PSD_VERSION}}));
    PSD_RETURN_IF_ERROR(
        visit({}, [&](const SavedRows& rows) { return file.append(std::as_bytes(std::span(rows.ids))); }));
    return visit({"values"}, [&](const SavedRows& rows) {
      countValues(rows.planes.front());
      return file.append(std::as_bytes(std::span(rows.planes.front())));
    });
  }

  Status writeText(WritableFile& file, TableFormat format) {
    std::string text;
    if (format == TableFormat::csv) {
      text = "id";
      for (uint32_t i = 0; i < spec_.dim; i++) fmt::format_to(std::back_inserter(text), ",{}", i);
      text += '\n';
    }
    return visit({"values"}, [&](const SavedRows& rows) {
      countValues(rows.planes.front());
      for (size_t i = 0; i < rows.size(); i++) {
        const auto values = std::span(rows.planes.front()).subspan(i * spec_.dim, spec_.dim);
        format == TableFormat::csv ? addCsv(rows.ids[i], values, text) : addLibsvm(rows.ids[i], values, text);
      }
      const Status written = file.append(std::as_bytes(std::span(text)));
      text.clear();
      return written;
    });
  }

 private:
  Status visit(const std::vector<std::string>& planes, const std::function<Status(SavedRows&)>& work) const {
    const auto& shards = checkpoint_.manifest.rowShards;
    for (size_t i = 0; i < shards.size(); i++) {
      if (std::ranges::find(shards[i].tables, table_) == shards[i].tables.end()) continue;
      PSD_RETURN_IF_ERROR(forEachRows(env_, checkpoint_, i, table_, planes, work));
    }
    return {};
  }

  void countValues(std::span<const float> values) {
    exported_.nonZeroValues += values.size() - static_cast<uint64_t>(std::ranges::count(values, 0.f));
  }

  static void addCsv(uint64_t id, std::span<const float> values, std::string& text) {
    fmt::format_to(std::back_inserter(text), "{}", id);
    for (const float value : values) fmt::format_to(std::back_inserter(text), ",{}", value);
    text += '\n';
  }

  static void addLibsvm(uint64_t id, std::span<const float> values, std::string& text) {
    if (std::ranges::count(values, 0.f) == static_cast<ptrdiff_t>(values.size())) return;
    fmt::format_to(std::back_inserter(text), "{}", id);
    for (size_t i = 0; i < values.size(); i++) {
      if (values[i] != 0) fmt::format_to(std::back_inserter(text), " {}:{}", i, values[i]);
    }
    text += '\n';
  }

  Env& env_;
  const Checkpoint& checkpoint_;
  const uint32_t table_;
  const TableSpec& spec_;
  ExportedTable exported_;
};

}  // namespace

Result<ExportedTable> exportTable(Env& env, const Checkpoint& checkpoint, const std::string& table,
                                  TableFormat format, const std::string& to) {
  const auto& tables = checkpoint.manifest.model.tables;
  const auto found = std::ranges::find(tables, table, &TableSpec::name);
  if (found == tables.end()) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("'{}' has no table '{}'; its tables are: {}", checkpoint.path, printable(table),
                             joined(tables, ", ", [](const TableSpec& each) { return each.name; }))};
  }
  TableWriter writer(env, checkpoint, static_cast<uint32_t>(found - tables.begin()));
  PSD_RETURN_IF_ERROR(writer.countRows());
  if (writer.exported().rows == 0) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("table '{}' of '{}' has no rows", table, checkpoint.path)};
  }
  PSD_RETURN_IF_ERROR(writeFileAtomically(env, to, [&](WritableFile& file) {
    return format == TableFormat::safetensors ? writer.writeSafetensors(file)
                                              : writer.writeText(file, format);
  }));
  return writer.exported();
}

}  // namespace psd
