#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace psd {

/// Something that happened in a daemon, as a plain value. The fields are documented in docs/operations.md.
struct DaemonEvent {
  uint64_t number = 0;  ///< from 1; one more with each
  double time = 0;      ///< Unix time, in seconds
  std::string kind;     ///< "joined", "lost", …
  std::string text;     ///< for people
  std::string by;       ///< the caller that asked for it: "token 'ops' at 10.0.0.7:4242"; empty: none did

  static void fields(auto& visit, auto& self) {
    visit("number", self.number);
    visit("time", self.time);
    visit("kind", self.kind);
    visit("text", self.text);
    visit("by", self.by);
  }
};

/// Events one after the other.
struct DaemonEvents {
  std::vector<DaemonEvent> events;

  static void fields(auto& visit, auto& self) { visit("events", self.events); }
};

}  // namespace psd
