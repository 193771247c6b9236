#include "trainer/client/received_version.h"

#include <cstring>
#include <new>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "common/os/huge_pages.h"
#include "common/patch/version_patch.h"
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
  FetchedVersion version{.info = info, .file = std::move(file), .received = info.bytes};
  for (const SafetensorsEntry& entry : header.tensors) {
    if (!isVersionDtype(entry.dtype)) {
      return damaged(fmt::format("tensor '{}' has dtype {}; versions have {}", printable(entry.name),
                                 printable(entry.dtype, 20), joined(kVersionDtypes, ", ")));
    }
    version.tensors.push_back(
        {entry.name, entry.dtype, entry.shape, header.dataBegin + entry.begin, header.dataBegin + entry.end});
    version.sums.push_back(contentSum(version.bytesOf(version.tensors.back())));
  }
  return version;
}

}  // namespace

Result<std::shared_ptr<std::byte[]>> allocateVersion(uint64_t bytes) {
  try {
    auto* const memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
    preferHugePages(memory, bytes);
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

Result<FetchedVersion> patchVersion(const PublishedVersion& info, const FetchedVersion& base,
                                    std::span<const std::byte> patch) {
  const auto failed = [&](const Error& error) {
    return Error{error.code, fmt::format("the patch from version {} to version {}: {}", base.info.number,
                                         info.number, error.message)};
  };
  const auto read = VersionPatch::read(patch);
  if (!read.ok()) return failed(read.error());
  const VersionInfo& to = read->header().info;
  if (to.number != info.number || to.history != info.history || to.step != info.step ||
      to.bytes != info.bytes || base.info.bytes != info.bytes) {
    return failed({ErrorCode::modelMismatch, "it leads to another version"});
  }
  FetchedVersion version = base;
  version.info = info;
  version.received = patch.size();
  PSD_ASSIGN_OR_RETURN(version.file, allocateVersion(info.bytes));
  std::memcpy(version.file.get(), base.file.get(), info.bytes);
  const auto differ = read->apply({version.file.get(), info.bytes}, version.sums);
  if (!differ.ok()) return failed(differ.error());
  if (differ->empty()) return version;
  return failed({ErrorCode::io, fmt::format("tensor '{}' differs from its sum", printable(differ->front()))});
}

}  // namespace psd
