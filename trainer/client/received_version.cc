#include "trainer/client/received_version.h"

#include <new>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/safetensors/published_version.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr std::align_val_t kAlignment{64};
Error damaged(const std::string& why) { return {ErrorCode::io, why}; }

Result<FetchedVersion> verified(const PublishedVersion& info, std::shared_ptr<std::byte[]> file) {
  const std::span<const std::byte> bytes(file.get(), info.bytes);
  PSD_ASSIGN_OR_RETURN(const VersionHeader header, verifyVersion(bytes, info.number, info.history));
  if (header.info.step != info.step) {
    return damaged(
        fmt::format("it says that it is of step {}, and the daemon says {}", header.info.step, info.step));
  }
  FetchedVersion version{info, std::move(file), {}};
  for (const SafetensorsEntry& entry : header.tensors) {
    if (!isVersionDtype(entry.dtype)) {
      return damaged(fmt::format("tensor '{}' has dtype {}; versions have {}", printable(entry.name),
                                 printable(entry.dtype, 20), joined(kVersionDtypes, ", ")));
    }
    version.tensors.push_back(
        {entry.name, entry.dtype, entry.shape, header.dataBegin + entry.begin, header.dataBegin + entry.end});
  }
  return version;
}

}  // namespace

Result<std::shared_ptr<std::byte[]>> allocateVersion(uint64_t bytes) {
  try {
    auto* const memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
    return std::shared_ptr<std::byte[]>(memory,
                                        [](std::byte* taken) { ::operator delete(taken, kAlignment); });
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::overloaded,
                 fmt::format("this machine has no memory for a version of {} bytes", bytes)};
  }
}

Result<FetchedVersion> verifyVersion(const PublishedVersion& info, std::shared_ptr<std::byte[]> file) {
  auto version = verified(info, std::move(file));
  if (version.ok()) return version;
  return Error{version.error().code,
               fmt::format("version {} is damaged: {}", info.number, version.message())};
}

}  // namespace psd
