#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// Bounds the lines that peers without access can cause: of each event kLinesPerHost of one host and kLines
/// of all hosts in a window of time. What exceeds this is counted, and the count logged when the window
/// ends. While lines are left out, each window lasts twice as long as the previous one, up to kWindowMax.
/// Not thread-safe; its owner guards it.
class LogLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr uint32_t kLinesPerHost = 10, kLines = 30;
  static constexpr std::chrono::seconds kWindowMin{10}, kWindowMax{600};

  /// Whether a line of the event is written. `peer` as AcceptedSocket::peer, with anything after a space.
  bool admit(const std::string& event, std::string_view peer, Clock::time_point now);
  /// For each window that has ended and left lines out, the sentence that counts them.
  std::vector<std::string> due(Clock::time_point now);
  /// When due() will return a sentence; nothing while no line is left out.
  std::optional<Clock::time_point> nextDue() const;
  /// Lines left out so far.
  uint64_t suppressed() const { return suppressed_; }

 private:
  struct Window {
    Clock::time_point begin;
    std::chrono::seconds length = kWindowMin;
    uint32_t lines = 0;
    uint64_t suppressed = 0;
    std::map<std::string, uint32_t, std::less<>> ofHost;  ///< at most kLines
  };

  std::map<std::string, Window> windows_;  ///< by event, each a constant of the program
  uint64_t suppressed_ = 0;
};

}  // namespace psd
