#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

/// Limits the lines that peers without access can cause: per event, kLinesPerHost of one host and kLines of
/// all hosts within a window of time. Suppressed lines are counted, and the count is logged when the window
/// ends. While lines are suppressed, each window lasts twice as long as the previous one, up to kWindowMax.
/// Not thread-safe; its owner guards it.
class LogLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr uint32_t kLinesPerHost = 10, kLines = 30;
  static constexpr std::chrono::seconds kWindowMin{10}, kWindowMax{600};

  /// Whether a line of the event is logged. `peer` is AcceptedSocket::peer, optionally followed by a space
  /// and other text.
  bool admit(const std::string& event, std::string_view peer, Clock::time_point now);
  /// A summary sentence for each window that has ended and suppressed lines.
  std::vector<std::string> due(Clock::time_point now);
  /// When due() will return a sentence; empty while no line is suppressed.
  std::optional<Clock::time_point> nextDue() const;
  /// Lines suppressed so far.
  uint64_t suppressed() const { return suppressed_; }

 private:
  struct Window {
    Clock::time_point begin;
    std::chrono::seconds length = kWindowMin;
    uint32_t lines = 0;
    uint64_t suppressed = 0;
    std::map<std::string, uint32_t, std::less<>> ofHost;  ///< at most kLines
  };

  std::map<std::string, Window> windows_;  ///< by event, which is a constant of the program
  uint64_t suppressed_ = 0;
};

}  // namespace psd
