#pragma once

#include <cstddef>
#include <cstdint>

#include "common/types/hyperparameters.h"

// The bytes of log records, as docs/reference/log_format.md describes them; for log_format.cc.

namespace psd::record_bytes {

inline constexpr uint32_t kUpdateRecord = 1, kAssignmentRecord = 2, kRowUpdateRecord = 3,
                          kRowUpdateBesideRecord = 4;
inline constexpr uint32_t kDepartedRecord = 5;  // only replicated, never on disk
inline constexpr uint32_t kDifferenceRecord = 6, kBuffersRecord = 7;
inline constexpr uint32_t kFileRecord = 8;               // only replicated, never on disk
inline constexpr uint32_t kWithHyperparameters = 0x100;  // added to the type of an update that has them
inline constexpr uint64_t kRecordBytesMax = 1ull << 42;
inline constexpr uint64_t kCodedElementsMax = (1ull << 31) - 1;  // Codec

/// A record's first bytes.
struct RecordHeader {
  uint32_t crc;  // CRC-32C of all that follows
  uint32_t type;
  uint64_t bytes;  // of the record, with padding
  uint64_t number;
  uint32_t shard;
  uint32_t sources;
  uint64_t update;
  double learningRate;
  uint64_t elements;
  uint32_t codecBytes;  // length of the codec's name, which follows the sources; 0: float32
  uint32_t part;        // UpdatePart
  uint64_t gradientBytes;
  uint64_t firstOfWrite;  // LSN of the first record of the write that made this one durable
};

/// A complete record of an assignment. The fields common to all records have their common offsets.
struct AssignmentBytes {
  uint32_t crc, type;
  uint64_t bytes, number;
  uint32_t rank, reserved;
  uint64_t incarnation, step;
  uint64_t epoch, begin, count;
  uint64_t firstOfWrite;
  uint64_t plan, samples, epochs, firstEpoch, assignment;
};
static_assert(offsetof(AssignmentBytes, number) == offsetof(RecordHeader, number));
static_assert(offsetof(AssignmentBytes, firstOfWrite) == offsetof(RecordHeader, firstOfWrite));

struct SourceBytes {
  uint32_t rank, samples;
  uint64_t incarnation, step, basis, staleness;
};
static_assert(sizeof(SourceBytes) == 40);

/// In the record of a row shard's update, between the codec's name and the gradient; followed by the runs and
/// then the ids.
struct RowsBytes {
  uint64_t runs, ids;
};
/// Precedes RowsBytes if rows were evicted or counted with the update; followed by the runs of both and then
/// the ids of both.
struct BesideBytes {
  uint64_t evictedRuns, evictedIds, countedRuns, countedIds;
};
struct RunBytes {
  uint32_t table, count;
};
struct CountedRunBytes {
  uint32_t table, count, pushes, blockBits;
};
static_assert(sizeof(RowsBytes) == 16 && sizeof(RunBytes) == 8);
static_assert(sizeof(BesideBytes) == 32 && sizeof(CountedRunBytes) == 16);

/// In the record of an update with hyperparameters, after the codec's name; followed by the runs and then the
/// sets, `values` doubles each.
struct HyperparametersBytes {
  uint64_t runs, sets, values;
  double factor;
};
struct HyperparameterRunBytes {
  uint64_t end;
  uint32_t set, steps;
};
static_assert(sizeof(HyperparametersBytes) == Hyperparameters::kHeaderBytes);
static_assert(sizeof(HyperparameterRunBytes) == sizeof(Hyperparameters::Run));

}  // namespace psd::record_bytes
