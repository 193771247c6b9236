#include "trainer/client/received_version.h"

#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/checksum/crc32c.h"
#include "common/config/json_file.h"
#include "common/safetensors/safetensors.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr std::align_val_t kAlignment{64};

/// The metadata of a version's file. A value type.
struct Metadata {
  std::string version, history, updates, checksums;
};

Error damaged(const std::string& why) { return {ErrorCode::io, why}; }

Result<Metadata> readMetadata(std::string_view header) {
  const auto json = parseJson(header, "its header");
  if (!json.ok()) return damaged(json.message());
  const auto metadata = json->find(kReservedName);
  const auto text = [&](const char* key) {
    if (metadata == json->end() || !metadata->is_object()) return std::string();
    const auto found = metadata->find(key);
    return found != metadata->end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  return Metadata{text("psd.version"), text("psd.history"), text("psd.updates"), text("psd.crc32c")};
}

/// Whether the header is of the version that the daemon has named.
Status checkIdentity(const PublishedVersion& info, const Metadata& metadata) {
  if (metadata.version.empty()) return damaged("its header has no psd.version, which every version has");
  if (metadata.version != std::to_string(info.number)) {
    return damaged("it says that it is version " + printable(metadata.version, 30));
  }
  if (const std::string history = fmt::format("{:016x}", info.history); metadata.history != history) {
    return damaged(fmt::format("it says that its history is {}, and the daemon says {}",
                               printable(metadata.history, 30), history));
  }
  if (metadata.updates != std::to_string(info.updates)) {
    return damaged(fmt::format("it says that it contains {} updates, and the daemon says {}",
                               printable(metadata.updates, 30), info.updates));
  }
  return {};
}

/// The tensors, which cover the data without gaps.
Result<std::vector<FetchedVersion::Tensor>> tensorsOf(const std::vector<SafetensorsEntry>& entries,
                                                      uint64_t dataBegin, uint64_t dataBytes) {
  std::vector<FetchedVersion::Tensor> tensors;
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string tensor = "tensor '" + printable(entry.name) + "'";
    if (entry.begin != at) return damaged(tensor + " does not follow the tensor before it");
    at = entry.end;
    DType dtype{};
    if (entry.dtype == "F32") {
      dtype = DType::f32;
    } else if (entry.dtype == "BF16") {
      dtype = DType::bf16;
    } else if (entry.dtype == "F16") {
      dtype = DType::f16;
    } else {
      return damaged(fmt::format("{} has dtype {}; versions have F32, BF16 and F16", tensor,
                                 printable(entry.dtype, 20)));
    }
    tensors.push_back({{entry.name, dtype, entry.shape}, dataBegin + entry.begin, dataBegin + entry.end});
  }
  if (at != dataBytes) return damaged("bytes follow its last tensor");
  return tensors;
}

Status checkSums(const FetchedVersion& version, std::string_view checksums) {
  constexpr size_t kDigits = 8;
  const size_t count = version.tensors.size();
  if (checksums.size() != (count == 0 ? 0 : count * (kDigits + 1) - 1)) {
    return damaged("its header does not have one checksum for each tensor");
  }
  for (size_t i = 0; i < count; i++) {
    const std::string_view expected = checksums.substr(i * (kDigits + 1), kDigits);
    const std::string actual = crcText(crc32c(version.bytesOf(version.tensors[i])));
    if (actual == expected) continue;
    return damaged(fmt::format("the checksum of tensor '{}' is {}; its header says {}",
                               printable(version.tensors[i].spec.name), actual, printable(expected, 8)));
  }
  return {};
}

Result<FetchedVersion> verified(const PublishedVersion& info, std::shared_ptr<std::byte[]> file) {
  uint64_t headerBytes = 0;
  if (info.bytes < sizeof headerBytes) return damaged("it is shorter than 8 bytes");
  std::memcpy(&headerBytes, file.get(), sizeof headerBytes);
  if (headerBytes > info.bytes - sizeof headerBytes)
    return damaged("its header length does not fit its size");
  const std::string_view header(reinterpret_cast<const char*>(file.get()) + sizeof headerBytes, headerBytes);
  const uint64_t dataBegin = sizeof headerBytes + headerBytes, dataBytes = info.bytes - dataBegin;
  PSD_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                       parseSafetensorsHeader(header, dataBytes));
  PSD_ASSIGN_OR_RETURN(const Metadata metadata, readMetadata(header));
  PSD_RETURN_IF_ERROR(checkIdentity(info, metadata));
  PSD_ASSIGN_OR_RETURN(auto tensors, tensorsOf(entries, dataBegin, dataBytes));
  FetchedVersion version{info, std::move(file), std::move(tensors)};
  PSD_RETURN_IF_ERROR(checkSums(version, metadata.checksums));
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
