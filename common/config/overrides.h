#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/status/status.h"

namespace psd {

/// The flags of a command line that change a configuration, in the order in which they apply. Owned by one
/// thread.
class Overrides {
 public:
  using Json = nlohmann::ordered_json;
  using Set = std::function<Status(Json& document, const std::string& value)>;
  /// Reads a document; its Error names the JSON path first.
  using Read = std::function<Status(Json document)>;

  /// A flag with a value, which must be UTF-8; `set` puts it at the JSON path `key`. Errors name the flag as
  /// the user wrote it.
  void add(const std::string& flag, const std::string& value, std::string key, Set set);
  /// A flag that sets a boolean key to true.
  void addSwitch(const std::string& flag, const std::string& key);
  /// --set KEY=VALUE; `isKey`: see applyOverride().
  void addAssignment(const std::string& assignment, const std::function<bool(std::string_view)>& isKey = {});

  /// Changes the document, if it is an object; of another one its reader reports the type.
  Status apply(Json& document) const { return apply(document, nullptr); }
  /// Prefix of an error that `read` returns for the changed document: the last flag that set the value at
  /// fault or one around it; or one in it, or any if the document alone is valid, without which the error
  /// differs; else `file`, if not empty.
  std::string origin(const std::string& message, const Json& document, const std::string& file,
                     const Read& read) const;

 private:
  struct Override {
    std::string flag;  ///< as the user wrote it
    std::string key;
    std::function<Status(Json& document)> set;
  };

  Status apply(Json& document, const Override* without) const;

  std::vector<Override> all_;
};

}  // namespace psd
