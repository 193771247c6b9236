#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "server/engine/engine.h"

/// Requests to etcd 3.4 and later over HTTP, and its responses: JSON with base64 keys and values, and with
/// 64-bit numbers as strings. Pure functions. Responses are untrusted: malformed ones are an Error,
/// unavailable, that describes the problem.
namespace psd::etcd {

std::string rangeRequest(const std::string& key);
/// Writes the text if the key has that revision, otherwise reads the key.
std::string swapRequest(const std::string& key, uint64_t expectedRevision, const std::string& text);
std::string watchRequest(const std::string& key, uint64_t fromRevision);
std::string loginRequest(const std::string& user, const std::string& password);

struct Range {
  Stored stored;
  uint64_t asOf = 0;  ///< revision of the whole store: later changes have a higher one
};
Result<Range> readRange(std::string_view answer, const std::string& key);
Result<Swapped> readSwap(std::string_view answer, const std::string& key, const std::string& text);

/// A line of a watch.
struct WatchLine {
  std::optional<Stored> changed;  ///< the key's newest value in this line
  bool deleted = false;           ///< the key was deleted at some time
  uint64_t compacted = 0;         ///< requested revision was compacted; the oldest available one
};
/// Also an Error if etcd canceled the watch.
Result<WatchLine> readWatch(std::string_view line, const std::string& key);

Result<std::string> readToken(std::string_view answer);

/// Meaning of a response other than 200.
struct Refusal {
  Error error;
  bool needsLogin = false;  ///< the token is no longer valid
  bool noSuchPath = false;  ///< the server does not know the path
  bool authIsOff = false;   ///< authentication is disabled
};
Refusal readRefusal(unsigned httpStatus, std::string_view answer);

/// Whether this error message of etcd asks for a new token.
bool isLoginRequired(std::string_view message);

}  // namespace psd::etcd
