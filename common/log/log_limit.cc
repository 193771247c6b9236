#include "common/log/log_limit.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/quantity.h"

namespace psd {
namespace {

/// "10.0.0.7" of "10.0.0.7:4711 (psd-trainer)": a peer that reconnects has another port.
std::string_view hostOfPeer(std::string_view peer) {
  const std::string_view address = peer.substr(0, peer.find(" ("));
  const size_t port = address.rfind(':');
  return address.substr(0, port);
}

}  // namespace

bool LogLimit::admit(const std::string& event, std::string_view peer, Clock::time_point now) {
  const auto [entry, isNew] = windows_.try_emplace(event);
  Window& window = entry->second;
  if (isNew || (window.suppressed == 0 && now >= window.begin + window.length)) {
    window = Window{.begin = now};
  }
  const std::string_view host = hostOfPeer(peer);
  const auto known = window.ofHost.find(host);
  const bool full =
      window.lines == kLines || (known != window.ofHost.end() && known->second == kLinesPerHost);
  if (full) {
    window.suppressed++;
    suppressed_++;
    return false;
  }
  window.lines++;
  if (known == window.ofHost.end()) {
    window.ofHost.emplace(host, 1);
  } else {
    known->second++;
  }
  return true;
}

std::vector<std::string> LogLimit::due(Clock::time_point now) {
  std::vector<std::string> sentences;
  for (auto& [event, window] : windows_) {
    if (window.suppressed == 0 || now < window.begin + window.length) continue;
    sentences.push_back(fmt::format("{} more lines of event '{}' in {} were left out", window.suppressed,
                                    event,
                                    durationText(std::chrono::duration<double>(now - window.begin).count())));
    window = Window{.begin = now, .length = std::min(2 * window.length, kWindowMax)};
  }
  return sentences;
}

std::optional<LogLimit::Clock::time_point> LogLimit::nextDue() const {
  std::optional<Clock::time_point> next;
  for (const auto& [event, window] : windows_) {
    if (window.suppressed == 0) continue;
    const Clock::time_point end = window.begin + window.length;
    next = next ? std::min(*next, end) : end;
  }
  return next;
}

}  // namespace psd
