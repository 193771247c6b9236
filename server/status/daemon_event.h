#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace psd {

/// An event in a daemon, as a plain value. The fields are documented in docs/reference/status.md.
struct DaemonEvent {
  uint64_t number = 0;  ///< from 1, rising
  double time = 0;      ///< Unix time, in seconds
  std::string kind;     ///< "joined", "lost", …
  std::string text;     ///< human-readable
  std::string by;       ///< the caller that requested it: "token 'ops' at 10.0.0.7:4242"; empty: none

  static void fields(auto& visit, auto& self) {
    visit("number", self.number);
    visit("time", self.time);
    visit("kind", self.kind);
    visit("text", self.text);
    visit("by", self.by);
  }
};

/// A list of events, in order.
struct DaemonEvents {
  std::vector<DaemonEvent> events;

  static void fields(auto& visit, auto& self) { visit("events", self.events); }
};

}  // namespace psd
