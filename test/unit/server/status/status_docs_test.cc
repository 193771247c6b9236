// The tables of the status document's fields and of the metrics in docs/reference/status.md are exact.

#include <fstream>
#include <set>
#include <sstream>
#include <type_traits>

#include <fmt/format.h>

#include "common/text/text.h"
#include "server/status/daemon_status.h"
#include "test/support/catch.h"

namespace psd::status_docs_test {
namespace {

struct Names {
  std::set<std::string> values;   // "shards[].version"
  std::set<std::string> parents;  // "shards[]"
};

/// Collects the names of the fields of a struct, and of nested ones.
struct NamesVisitor {
  Names& names;
  std::string path;

  template <class T>
  void operator()(std::string_view name, const T& value) {
    enter(path.empty() ? std::string(name) : fmt::format("{}.{}", path, name), value);
  }

  template <class T>
  void enter(const std::string& name, const T& value) {
    if constexpr (requires(NamesVisitor & visit) { T::fields(visit, value); }) {
      names.parents.insert(name);
      NamesVisitor below{names, name};
      T::fields(below, value);
    } else {
      names.values.insert(name);
    }
  }
  template <class T>
  void enter(const std::string& name, const std::optional<T>&) {
    enter(name, T());
  }
  template <class T>
  void enter(const std::string& name, const std::vector<T>&) {
    if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string>) {
      enter(name + "[]", T());
    } else {
      names.values.insert(name);
    }
  }
  /// Metrics have a separate table.
  template <class Kind>
  void enter(const std::string& name, const MetricValues<Kind>&) {
    enter(name + ".NAME", typename Kind::Value());
  }
};

std::string trimmed(std::string_view cell) {
  const size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
  return begin == std::string_view::npos ? "" : std::string(cell.substr(begin, end - begin + 1));
}

/// The rows of the page's table under that heading, by cells.
std::vector<std::vector<std::string>> tableOf(const std::string& heading) {
  std::ifstream page(PSD_SOURCE_DIR "/docs/reference/status.md");
  std::vector<std::vector<std::string>> rows;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (inside && !line.starts_with('|')) break;
    if (inside && !line.starts_with("|--")) {
      std::istringstream cells(line.substr(1));
      auto& row = rows.emplace_back();
      for (std::string cell; std::getline(cells, cell, '|');) row.push_back(trimmed(cell));
    }
    inside = inside || line == heading;
  }
  return rows;
}

/// "`a.b`, `.c`" is a.b and a.c.
std::vector<std::string> namesIn(const std::string& cell) {
  std::vector<std::string> names;
  for (size_t begin = cell.find('`'); begin != std::string::npos;) {
    const size_t end = cell.find('`', begin + 1);
    REQUIRE(end != std::string::npos);
    std::string name = cell.substr(begin + 1, end - begin - 1);
    if (name.starts_with('.')) name.insert(0, names.back().substr(0, names.back().rfind('.')));
    names.push_back(name);
    begin = cell.find('`', end + 1);
  }
  return names;
}

std::string unitText(Unit unit) {
  return unit == Unit::bytes ? "bytes" : unit == Unit::seconds ? "seconds" : "";
}

std::string unitOf(std::string_view name) {
  return unitText(name.ends_with("_bytes")     ? Unit::bytes
                  : name.ends_with("_seconds") ? Unit::seconds
                                               : Unit::none);
}

TEST_CASE("the page has every field of the status with its unit, and no other") {
  Names names;
  NamesVisitor visitor{names, ""};
  const DaemonStatus status;
  DaemonStatus::fields(visitor, status);
  REQUIRE(names.values.size() > 70);
  std::set<std::string> shown;
  for (const auto& row : tableOf("| field | unit | meaning |")) {
    REQUIRE(row.size() == 3);
    for (const std::string& name : namesIn(row[0])) {
      INFO(name);
      CHECK(shown.insert(name).second);
      CHECK((names.values.contains(name) || names.parents.contains(name)));
      CHECK(row[1] == unitOf(name));
      CHECK_FALSE(row[2].empty());
    }
  }
  for (const std::string& name : names.values) {
    INFO(name);
    CHECK(shown.contains(name));
  }
}

template <class Kind>
std::vector<std::string> rowsOf(std::string_view kind) {
  std::vector<std::string> rows;
  for (const Metric<Kind>* metric : daemonMetrics().all<Kind>()) {
    const MetricInfo& info = metric->info();
    rows.push_back(fmt::format("`{}`|{}|{}|{}", info.name, kind, unitText(info.unit), info.help));
  }
  return rows;
}

TEST_CASE("the page has every metric as the registry describes it, and no other") {
  std::multiset<std::string> shown, there;
  for (const auto& row : tableOf("| metric | kind | unit | counts |")) shown.insert(joined(row, "|"));
  for (const auto& rows :
       {rowsOf<Counter>("counter"), rowsOf<Gauge>("gauge"), rowsOf<Histogram>("histogram")}) {
    there.insert(rows.begin(), rows.end());
  }
  REQUIRE(there.size() >= 29);
  CHECK(shown == there);
}

}  // namespace
}  // namespace psd::status_docs_test
