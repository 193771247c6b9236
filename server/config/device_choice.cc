#include "server/config/device_choice.h"

#include <charconv>

#include "common/text/text.h"

namespace psd {
namespace {

constexpr std::string_view kCuda = "cuda:";

}  // namespace

std::string DeviceChoice::toString() const {
  switch (kind) {
    case Kind::automatic: return "auto";
    case Kind::cpu: return "cpu";
    case Kind::cuda: return std::string(kCuda) + std::to_string(index);
  }
  return "unknown";
}

Result<DeviceChoice> parseDevice(std::string_view text) {
  if (text == "auto") return DeviceChoice{DeviceChoice::Kind::automatic};
  if (text == "cpu") return DeviceChoice{DeviceChoice::Kind::cpu};
  if (text.starts_with(kCuda)) {
    std::string_view number = text.substr(kCuda.size());
    DeviceChoice choice{DeviceChoice::Kind::cuda, -1};
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), choice.index);
    bool whole = error == std::errc() && end == number.data() + number.size();
    // Compared as text too, so that there is one way to write each device ("cuda:00" is none).
    if (whole && choice.index >= 0 && choice.index <= kDeviceIndexMax && choice.toString() == text) {
      return choice;
    }
  }
  return Error{ErrorCode::invalidArgument, "must be \"auto\", \"cpu\" or \"cuda:N\" with N from 0 to " +
                                               std::to_string(kDeviceIndexMax) + ", not \"" +
                                               printable(text) + "\""};
}

}  // namespace psd
