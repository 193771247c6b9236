#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "trainer/client/api/version_reader.h"

namespace psd {

/// Memory for the file of a version, 64-byte aligned, with unspecified contents. ErrorCode::overloaded if
/// there is none.
Result<std::shared_ptr<std::byte[]>> allocateVersion(uint64_t bytes);

/// Parses the bytes of a version's file and verifies them: the header, that it is the version in `info`, and
/// the CRC-32C of each tensor. ErrorCode::io says what is damaged, and names the tensor.
Result<FetchedVersion> verifyVersion(const PublishedVersion& info, std::shared_ptr<std::byte[]> file);

/// The version that the patch in `patch` makes of `base`, which stays as it is. ErrorCode::io or
/// modelMismatch: the patch is damaged or does not lead from `base` to the version in `info`, or the result
/// differs from what it says.
Result<FetchedVersion> patchVersion(const PublishedVersion& info, const FetchedVersion& base,
                                    std::span<const std::byte> patch);

}  // namespace psd
