#include "common/config/json_file.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/config/json_syntax.h"
#include "common/os/text_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kQuotedValueBytesMax = 60;
constexpr size_t kKeyBytesMax = 200;
constexpr size_t kDepthMax = 100;  // of lists and objects within each other; code that walks them recurses

/// Builds the document from the parser's events, which detects repeated keys, and keeps the first error. Used
/// by one parse, on one thread.
class DocumentBuilder final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) override { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t& value) override { return add(Json::binary(std::move(value))); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    Frame& object = frames_.back();
    object.key = name;
    if (object.keys.insert(name).second) return true;
    repeatedKey_ = path();
    return false;
  }

  bool parse_error(size_t position, const std::string& lastToken,
                   const nlohmann::json::exception& error) override {
    failure_ = {position, lastToken, error.what(), !frames_.empty() && frames_.back().value.empty()};
    return false;
  }

  Json& document() { return document_; }
  const std::optional<std::string>& repeatedKey() const { return repeatedKey_; }
  bool tooDeep() const { return tooDeep_; }
  const JsonFailure& failure() const { return failure_; }

 private:
  /// A list or object that is not closed yet, and the key of its next value.
  struct Frame {
    Json value;
    std::string key;
    std::unordered_set<std::string> keys{};  // of an object, those so far
  };

  bool add(Json value) {
    if (frames_.empty()) {
      document_ = std::move(value);
    } else if (Frame& parent = frames_.back(); parent.value.is_object()) {
      appendMember(parent.value, parent.key, std::move(value));
    } else {
      parent.value.push_back(std::move(value));
    }
    return true;
  }

  bool open(Json container) {
    tooDeep_ = frames_.size() == kDepthMax;
    if (tooDeep_) return false;
    frames_.push_back({std::move(container), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(frames_.back().value);
    frames_.pop_back();
    return add(std::move(value));
  }

  /// The path of the next value.
  std::string path() const {
    std::string path;
    for (const Frame& frame : frames_) {
      if (frame.value.is_array()) {
        path += "[" + std::to_string(frame.value.size()) + "]";
      } else {
        path += (path.empty() ? "" : ".") + keyText(frame.key);
      }
    }
    return path;
  }

  std::vector<Frame> frames_;
  Json document_;
  std::optional<std::string> repeatedKey_;  ///< path of the repeated key
  bool tooDeep_ = false;
  JsonFailure failure_;
};

/// The value of an assignment: JSON, or text that does not look like JSON.
Result<Json> overrideValue(std::string_view text) {
  Result<Json> value = parseJson(text, "value");
  bool looksLikeJson = !text.empty() && std::string_view("{[\"").find(text[0]) != std::string_view::npos;
  if (value.ok() || looksLikeJson) return value;
  if (!isUtf8(text)) return Error{ErrorCode::invalidArgument, "the value is not UTF-8 text"};
  return Json(std::string(text));
}

}  // namespace

Result<Json> parseJson(std::string_view text, std::string_view origin) {
  auto bad = [&](const std::string& separator, const std::string& what) {
    return Error{ErrorCode::invalidArgument, std::string(origin) + separator + what};
  };
  // The parser takes a zero byte as the end of the text.
  if (text.find('\0') != std::string_view::npos) return bad(": ", "holds a zero byte: not JSON text");
  DocumentBuilder builder;
  bool complete = Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json,
                                  /*strict=*/true, /*ignore_comments=*/true);
  if (complete) return std::move(builder.document());
  if (builder.repeatedKey()) return bad(": ", *builder.repeatedKey() + ": appears twice");
  if (builder.tooDeep())
    return bad(": ", fmt::format("lists and objects are nested more than {} deep", kDepthMax));
  return bad(", ", describeSyntaxError(text, builder.failure()));
}

Result<Json> readJsonFile(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text, readText(env, path, kConfigBytesMax, "a configuration"));
  return parseJson(text, path);
}

Status applyOverride(Json& document, std::string_view assignment,
                     const std::function<bool(std::string_view path)>& isKey) {
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::invalidArgument, "'" + printable(assignment) + "': " + why};
  };
  size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) return bad("write KEY=VALUE, as in policy.type=locked");
  Result<Json> value = overrideValue(assignment.substr(equals + 1));
  if (!value.ok()) return bad(value.message());
  if (value->is_null() && isKey && isKey(assignment.substr(0, equals))) {
    std::string place = "/" + std::string(assignment.substr(0, equals));
    std::ranges::replace(place, '.', '/');
    if (!document.contains(Json::json_pointer(place))) return {};
  }

  Json* target = &document;
  for (std::string_view rest = assignment.substr(0, equals);;) {
    const size_t dot = rest.find('.');
    const std::string key(rest.substr(0, dot));
    if (key.empty()) return bad("a key is empty; write KEY=VALUE, as in policy.type=locked");
    if (target->is_null()) *target = Json::object();
    if (!target->is_object()) {
      return bad("'" + printable(key) + "' cannot be set inside " + describeJson(*target) +
                 "; give the whole value instead");
    }
    const bool isLast = dot == std::string_view::npos;
    if (isLast && value->is_null() && target->erase(key) > 0) return {};
    target = &(*target)[key];
    if (isLast) break;
    rest.remove_prefix(dot + 1);
  }
  *target = *std::move(value);
  return {};
}

std::string overriddenPath(std::string_view assignment) {
  std::string path;
  for (std::string_view rest = assignment.substr(0, assignment.find('='));;) {
    const size_t dot = rest.find('.');
    path += keyText(std::string(rest.substr(0, dot)));
    if (dot == std::string_view::npos) return path;
    path += '.';
    rest.remove_prefix(dot + 1);
  }
}

void appendMember(Json& object, const std::string& key, Json value) {
  Json::object_t::Container& members = object.get_ref<Json::object_t&>();
  members.emplace_back(key, std::move(value));
}

std::string jsonText(const Json& document, int indent) {
  return document.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string keyText(const std::string& key) {
  std::string quoted = jsonText(key);
  return oneLine(std::string_view(quoted).substr(1, quoted.size() - 2), kKeyBytesMax);
}

std::string describeJson(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = jsonText(value);
  if (text.size() <= kQuotedValueBytesMax) return text;
  size_t end = kQuotedValueBytesMax;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) end--;  // inside a UTF-8 character
  return text.substr(0, end) + "…";
}

}  // namespace psd
