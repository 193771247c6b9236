#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/status/status.h"
#include "server/engine/engine.h"

/// What etcd 3.4 and later are asked over HTTP, and what they answer: JSON in which keys and values are
/// base64 and 64-bit numbers are strings. Pure functions. Answers are a peer's bytes: what is not as it
/// should be is an Error, unavailable, that says so.
namespace psd::etcd {

std::string rangeRequest(const std::string& key);
/// Writes the text where the key's revision is that, else reads the key.
std::string swapRequest(const std::string& key, uint64_t expectedRevision, const std::string& text);
std::string watchRequest(const std::string& key, uint64_t fromRevision);
std::string loginRequest(const std::string& user, const std::string& password);

struct Range {
  Stored stored;
  uint64_t asOf = 0;  ///< of the whole etcd: what has changed since has a higher revision
};
Result<Range> readRange(std::string_view answer, const std::string& key);
Result<Swapped> readSwap(std::string_view answer, const std::string& key, const std::string& text);

/// A line of a watch.
struct WatchLine {
  std::optional<Stored> changed;  ///< the newest text of the key that it tells of
  bool deleted = false;           ///< the key was, at some time
  uint64_t compacted = 0;         ///< what was asked for is no longer kept; from here on it is
};
/// An error also where etcd has ended the watch.
Result<WatchLine> readWatch(std::string_view line, const std::string& key);

Result<std::string> readToken(std::string_view answer);

/// What etcd means by an answer that is not 200.
struct Refusal {
  Error error;
  bool loginAgain = false;  ///< the token is of no use any more
  bool noSuchPath = false;  ///< nobody here knows of the call
  bool authIsOff = false;   ///< users and passwords are not in use
};
Refusal readRefusal(unsigned httpStatus, std::string_view answer);

/// Whether etcd, which says this, wants another token.
bool asksForLogin(std::string_view message);

}  // namespace psd::etcd
