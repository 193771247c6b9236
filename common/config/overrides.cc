#include "common/config/overrides.h"

#include <algorithm>
#include <utility>

#include "common/config/json_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

/// Whether the value at one JSON path is that at the other or lies in it. `inner` may have more after ":".
bool holds(std::string_view outer, std::string_view inner) {
  if (!inner.starts_with(outer)) return false;
  return inner.size() == outer.size() || std::string_view(":.[").find(inner[outer.size()]) != inner.npos;
}

}  // namespace

void Overrides::add(const std::string& flag, const std::string& value, std::string key, Set set) {
  const std::string shown = flag + " " + printable(value);
  all_.push_back({shown, std::move(key), [shown, value, set = std::move(set)](Json& document) {
                    if (isUtf8(value)) return set(document, value);
                    return Status(ErrorCode::invalidArgument, shown + ": the value is not UTF-8 text");
                  }});
}

void Overrides::addSwitch(const std::string& flag, const std::string& key) {
  all_.push_back({flag, key, [key](Json& document) {
                    document[key] = true;
                    return Status();
                  }});
}

void Overrides::addAssignment(const std::string& assignment,
                              const std::function<bool(std::string_view)>& isKey) {
  all_.push_back(
      {"--set " + printable(assignment), overriddenPath(assignment), [assignment, isKey](Json& document) {
         const Status applied = applyOverride(document, assignment, isKey);
         return applied.ok() ? applied : Status(applied.error().code, "--set " + applied.message());
       }});
}

Status Overrides::apply(Json& document, const Override* without) const {
  if (!document.is_object()) return {};
  for (const Override& each : all_) {
    if (&each != without) PSD_RETURN_IF_ERROR(each.set(document));
  }
  return {};
}

std::string Overrides::origin(const std::string& message, const Json& document, const std::string& file,
                              const Read& read) const {
  const std::string path = message.substr(0, message.find(": "));
  const auto matters = [&](const Override& each) {
    Json others = document;
    return !apply(others, &each).ok() || read(std::move(others)).message() != message;
  };
  const auto last = all_.rbegin(), none = all_.rend();
  auto found = std::find_if(last, none, [&](const Override& each) {
    return holds(each.key, message) || (holds(path, each.key) && matters(each));
  });
  if (found == none && !all_.empty() && read(document).ok()) found = std::find_if(last, none, matters);
  if (found != none) return found->flag + ": ";
  return file.empty() ? "" : file + ": ";
}

}  // namespace psd
