#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace psd {

/// Human-readable byte count: "512 B", "18.5 MiB".
std::string bytesText(uint64_t bytes);

/// Human-readable duration, used in all messages: "250 µs", "12.5 ms", "3.2 s", "5 min 3 s", "2 h 10 min".
std::string durationText(double seconds);
inline std::string durationText(std::chrono::duration<double> time) { return durationText(time.count()); }

}  // namespace psd
