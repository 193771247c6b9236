#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "common/safetensors/tensor_map.h"
#include "common/status/status.h"
#include "common/types/version_info.h"

namespace psd {

/// The bytes of a version's file, as one span or several. Refers to memory of its maker.
struct VersionImage {
  using Sink = std::function<Status(std::span<const std::byte>)>;

  VersionInfo info;                           ///< `bytes` are those of the image
  std::function<Status(const Sink&)> passTo;  ///< passes the bytes in order, as often as called
};

/// The image of a verified version: its file, or what `map`, if not null, makes of it. A mapped file has the
/// version's metadata with the checksums of its own tensors, and the map's checksum; its tensors lie at the
/// same places for all versions of a model.
Result<VersionImage> versionImage(const VersionInfo& info, std::span<const std::byte> file,
                                  const TensorMap* map);

}  // namespace psd
