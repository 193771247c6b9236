#include "server/status/status_json.h"

#include <concepts>
#include <limits>

#include <fmt/format.h>

#include "common/config/json_file.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

struct AnyVisitor {
  void operator()(std::string_view, auto&) {}
};

template <class T>
concept HasFields = requires(AnyVisitor& visit, T& value) {
  T::fields(visit, value);
};

template <class T>
Json jsonOf(const T& value);

struct JsonWriter {
  Json& object;
  template <class T>
  void operator()(std::string_view name, const T& value) {
    object[std::string(name)] = jsonOf(value);
  }
};

template <class T>
Json valueJson(const T& value) {
  return value;
}

template <HasFields T>
Json valueJson(const T& value) {
  Json object = Json::object();
  JsonWriter writer{object};
  T::fields(writer, value);
  return object;
}

template <class T>
Json valueJson(const std::optional<T>& value) {
  return value ? jsonOf(*value) : Json();
}

template <class T>
Json valueJson(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& each : values) list.push_back(jsonOf(each));
  return list;
}

template <class T>
Json jsonOf(const T& value) {
  return valueJson(value);
}

/// Parses the values of a document up to the first invalid one. Owned by one thread.
class StatusReader {
 public:
  /// Empty: all values so far are valid.
  const std::string& problem() const { return problem_; }

  void read(const Json& json, const std::string& path, std::string& value) {
    if (!json.is_string()) return expect(path, "a string", json);
    value = json.get<std::string>();
  }
  void read(const Json& json, const std::string& path, bool& value) {
    if (!json.is_boolean()) return expect(path, "true or false", json);
    value = json.get<bool>();
  }
  void read(const Json& json, const std::string& path, double& value) {
    if (!json.is_number()) return expect(path, "a number", json);
    value = json.get<double>();
  }
  template <std::unsigned_integral T>
  void read(const Json& json, const std::string& path, T& value) {
    constexpr uint64_t kMost = std::numeric_limits<T>::max();
    if (!json.is_number_unsigned() || json.get<uint64_t>() > kMost) {
      return expect(path, fmt::format("an integer from 0 to {}", kMost), json);
    }
    value = json.get<T>();
  }
  template <class T>
  void read(const Json& json, const std::string& path, std::optional<T>& value) {
    if (json.is_null()) return value.reset();
    read(json, path, value.emplace());
  }
  template <class T>
  void read(const Json& json, const std::string& path, std::vector<T>& values) {
    if (!json.is_array()) return expect(path, "a list", json);
    values.clear();
    for (const Json& each : json) {
      if (!problem_.empty()) return;
      const std::string place = fmt::format("{}[{}]", path, values.size());
      read(each, place, values.emplace_back());
    }
  }
  template <HasFields T>
  void read(const Json& json, const std::string& path, T& value) {
    if (!json.is_object()) return expect(path, "an object", json);
    auto readField = [&](std::string_view name, auto& field) {
      if (!problem_.empty()) return;
      const std::string place = fmt::format("{}{}{}", path, path.empty() ? "" : ".", name);
      // An older daemon does not have every field.
      if (const auto found = json.find(std::string(name)); found != json.end()) read(*found, place, field);
    };
    T::fields(readField, value);
  }

 private:
  void expect(const std::string& path, std::string_view right, const Json& json) {
    problem_ = fmt::format("{} must be {}, not {}", path.empty() ? "it" : path, right, describeJson(json));
  }

  std::string problem_;
};

template <class T>
Result<T> readDocument(const Json& document, std::string_view origin) {
  T value;
  StatusReader reader;
  reader.read(document, "", value);
  if (reader.problem().empty()) return value;
  return Error{ErrorCode::protocolMismatch,
               fmt::format("{}: {}; is the daemon another version of psd?", origin, reader.problem())};
}

}  // namespace

Json statusJson(const DaemonStatus& status) { return jsonOf(status); }

Json statusJson(const HotRowsStatus& status) { return jsonOf(status); }

Json statusJson(const DaemonEvents& events) { return jsonOf(events); }

Json statusJson(const DaemonRows& rows) { return jsonOf(rows); }

Result<DaemonStatus> readStatus(const Json& document, std::string_view origin) {
  if (document.is_object() && !document.contains("version")) {
    return Error{ErrorCode::protocolMismatch, fmt::format("{}: version is missing", origin)};
  }
  return readDocument<DaemonStatus>(document, origin);
}

Result<HotRowsStatus> readHotRows(const Json& document, std::string_view origin) {
  return readDocument<HotRowsStatus>(document, origin);
}

Result<DaemonEvents> readEvents(const Json& document, std::string_view origin) {
  return readDocument<DaemonEvents>(document, origin);
}

}  // namespace psd
