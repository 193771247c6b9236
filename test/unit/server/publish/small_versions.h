#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/publish/version_store.h"
#include "test/support/catch.h"

/// Versions of a model of two tensors, for tests of VersionStore.
namespace psd::small_versions {

inline constexpr VersionLedger::Terms kTerms{.keep = 2, .bytes = 1 << 20, .leases = 16};
inline const std::string kFolder = "/data/versions";

inline ModelSpec model() { return {"m", {{"a", DType::f32, {2, 3}}, {"b", DType::bf16, {4}}}, {}}; }

/// The values of a version: each byte is `fill`.
inline std::vector<std::byte> valuesOf(uint8_t fill) {
  return std::vector<std::byte>(6 * sizeof(float) + 4 * 2, std::byte{fill});
}

inline std::shared_ptr<Env> borrowed(Env& env) { return {std::shared_ptr<void>(), &env}; }

inline Result<std::shared_ptr<VersionStore>> openAt(Env& env) {
  return VersionStore::open({.env = borrowed(env), .folder = kFolder}, kTerms);
}

inline Result<VersionInfo> publish(VersionStore& store, uint8_t fill) {
  const std::vector<std::byte> values = valuesOf(fill);
  return store.publish({.step = fill, .created = "2026-11-29T00:00:00Z", .moment = VersionMoment::snapshot},
                       {safetensorsEntries(model()), values});
}

inline std::string bytesOf(VersionStore& store, uint64_t number) {
  const auto info = store.find(number);
  PSD_REQUIRE_OK(info);
  const auto bytes = store.read(info->number, 0, info->bytes);
  PSD_REQUIRE_OK(bytes);
  return {reinterpret_cast<const char*>(bytes->data()), info->bytes};
}

inline std::vector<uint64_t> numbersOf(const VersionStore& store) {
  std::vector<uint64_t> numbers;
  for (const VersionInfo& info : store.versions()) numbers.push_back(info.number);
  return numbers;
}

}  // namespace psd::small_versions
