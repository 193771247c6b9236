#include "trainer/bridge/bridge_state.h"

#include <array>
#include <span>
#include <utility>

#include "common/checksum/crc32c.h"
#include "common/safetensors/safetensors.h"

namespace psd {
namespace {

constexpr size_t kNumbers = 10;  // the last one is the checksum of all other fields

std::vector<uint64_t> valuesOf(const std::vector<Version>& versions) {
  std::vector<uint64_t> values;
  for (const Version version : versions) values.push_back(version.value);
  return values;
}

std::vector<Version> versionsOf(const std::vector<uint64_t>& values) {
  std::vector<Version> versions;
  for (const uint64_t value : values) versions.push_back(Version{value});
  return versions;
}

template <class Value>
Result<std::vector<Value>> readTensor(const SafetensorsReader& file, const std::string& path,
                                      const std::string& name) {
  const auto index = file.find(name);
  constexpr DType kType = std::is_same_v<Value, float> ? DType::f32 : DType::u64;
  if (!index || file.model().tensors[*index].dtype != kType) {
    return Error{ErrorCode::io, "'" + path + "' is not a bridge's state: it lacks '" + name + "'"};
  }
  std::vector<Value> values(file.model().tensors[*index].elementCount());
  PSD_RETURN_IF_ERROR(file.read(*index, 0, std::span(values)));
  return values;
}

template <class Value>
Status append(WritableFile& file, const std::vector<Value>& values) {
  return file.append(std::as_bytes(std::span(values)));
}

/// In file order, without the checksum.
std::vector<uint64_t> numbersOf(const BridgeState& state) {
  return {static_cast<uint64_t>(state.phase),
          state.incarnation,
          state.rank.value,
          state.signature,
          state.pushed.value,
          state.added.value,
          state.updates,
          state.rootDaemon,
          state.localDaemon};
}

uint64_t checksumOf(const BridgeState& state) {
  uint32_t crc = 0;
  for (const auto& part :
       {numbersOf(state), valuesOf(state.basis), valuesOf(state.seen), valuesOf(state.counted)}) {
    crc = crc32c(std::as_bytes(std::span(part)), crc);
  }
  for (const auto* part : {&state.base, &state.other}) crc = crc32c(std::as_bytes(std::span(*part)), crc);
  return crc;
}

}  // namespace

Result<BridgeFile> BridgeFile::open(Env& env, const std::string& folder) {
  PSD_RETURN_IF_ERROR(env.createFolder(folder));
  auto lock = env.lock(folder + "/lock");
  if (lock.ok()) return BridgeFile(env, folder + "/bridge.safetensors", *std::move(lock));
  return Error{lock.error().code, "'" + folder + "': in use by another bridge, or " + lock.message()};
}

Result<BridgeState> BridgeFile::load() const {
  PSD_ASSIGN_OR_RETURN(const bool there, env_->exists(path_));
  BridgeState state;
  if (!there) return state;
  PSD_ASSIGN_OR_RETURN(const SafetensorsReader file,
                       SafetensorsReader::open(*env_, path_, SafetensorsReader::Takes::floatsAndIntegers));
  PSD_ASSIGN_OR_RETURN(const auto numbers, readTensor<uint64_t>(file, path_, "numbers"));
  const bool known = numbers.size() == kNumbers &&
                     numbers[0] <= static_cast<uint64_t>(BridgeState::Phase::adding) &&
                     numbers[2] <= UINT32_MAX;
  if (!known) return Error{ErrorCode::io, "'" + path_ + "' is the state of another version of the bridge"};
  state.phase = BridgeState::Phase{numbers[0]};
  state.incarnation = numbers[1];
  state.rank = Rank{static_cast<uint32_t>(numbers[2])};
  state.signature = numbers[3];
  state.pushed = Step{numbers[4]};
  state.added = Step{numbers[5]};
  state.updates = numbers[6];
  state.rootDaemon = numbers[7];
  state.localDaemon = numbers[8];
  const Error damaged{ErrorCode::io,
                      "'" + path_ +
                          "' is damaged: its content does not match its checksum. With another folder the "
                          "bridge starts over, without this machine's training since the last exchange"};
  const auto whole = [&] { return checksumOf(state) == numbers[kNumbers - 1]; };
  if (state.phase == BridgeState::Phase::fresh) return whole() ? Result<BridgeState>(state) : damaged;
  PSD_ASSIGN_OR_RETURN(const auto basis, readTensor<uint64_t>(file, path_, "basis"));
  PSD_ASSIGN_OR_RETURN(const auto seen, readTensor<uint64_t>(file, path_, "seen"));
  state.basis = versionsOf(basis);
  PSD_ASSIGN_OR_RETURN(const auto counted, readTensor<uint64_t>(file, path_, "counted"));
  state.seen = versionsOf(seen);
  state.counted = versionsOf(counted);
  PSD_ASSIGN_OR_RETURN(state.base, readTensor<float>(file, path_, "base"));
  PSD_ASSIGN_OR_RETURN(state.other, readTensor<float>(file, path_, "other"));
  if (!whole()) return damaged;
  const bool fits = !state.basis.empty() && !state.seen.empty() &&
                    state.counted.size() == state.seen.size() && state.base.size() == state.other.size();
  if (fits) return state;
  return Error{ErrorCode::io, "'" + path_ + "' is not a bridge's state: its arrays differ in length"};
}

Status BridgeFile::save(const BridgeState& state) const {
  std::vector<uint64_t> numbers = numbersOf(state);
  numbers.push_back(checksumOf(state));
  const std::vector<uint64_t> basis = valuesOf(state.basis), seen = valuesOf(state.seen),
                              counted = valuesOf(state.counted);
  ModelSpec content{"bridge", {{"numbers", DType::u64, {numbers.size()}}}};
  if (state.phase != BridgeState::Phase::fresh) {
    content.tensors.push_back({"basis", DType::u64, {basis.size()}});
    content.tensors.push_back({"seen", DType::u64, {seen.size()}});
    content.tensors.push_back({"counted", DType::u64, {counted.size()}});
    content.tensors.push_back({"base", DType::f32, {state.base.size()}});
    content.tensors.push_back({"other", DType::f32, {state.other.size()}});
  }
  return writeFileAtomically(*env_, path_, [&](WritableFile& file) -> Status {
    PSD_RETURN_IF_ERROR(writeSafetensorsHead(file, content, {}));
    PSD_RETURN_IF_ERROR(append(file, numbers));
    if (content.tensors.size() == 1) return {};
    PSD_RETURN_IF_ERROR(append(file, basis));
    PSD_RETURN_IF_ERROR(append(file, seen));
    PSD_RETURN_IF_ERROR(append(file, counted));
    PSD_RETURN_IF_ERROR(append(file, state.base));
    return append(file, state.other);
  });
}

}  // namespace psd
