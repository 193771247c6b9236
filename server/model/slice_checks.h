#pragma once

#include <cstdint>
#include <span>

#include "common/status/status.h"
#include "server/config/daemon_config.h"
#include "server/metrics/counters.h"
#include "server/policy/served_model.h"

namespace psd {

/// Checks a slice that a peer requested against its shard, the grain and limits.slice_bytes. The error names
/// the violated limit and the allowed value.
Status checkSlice(const ServedModel& model, const Limits& limits, uint32_t shard, uint64_t offset,
                  uint64_t count);
/// Checks a slice of a push like that of a pull, and `total`, the number of elements that the push declares
/// for its part of the shard.
Status checkSlice(const ServedModel& model, const Limits& limits, uint32_t shard, uint64_t offset,
                  uint64_t count, uint64_t total);

/// Checks what a push declares about a slice of rows against the row shard `shard` and limits.slice_bytes:
/// the gradient has `values` values, for the rows from `first` on of `total`.
Status checkRows(const ServedModel& model, const Limits& limits, uint32_t shard, const RowIds& rows,
                 uint64_t values, uint64_t first, uint64_t total);
/// Checks rows that a peer requests. The list may be empty.
Status checkRows(const ServedModel& model, const Limits& limits, uint32_t shard, const RowIds& rows);

/// Checks the hyperparameters that a push carries for a shard that passed checkSlice() or checkRows(): runs
/// that cover it, at most one for each tensor or table, and sets that its optimizer allows.
Status checkHyperparameters(const ServedModel& model, uint32_t shard, const Hyperparameters& carried);
/// The error of a push that brings hyperparameters where the configuration has the optimizer.
Error hyperparametersRefused();

/// Whether a trainer may replace the model's values and optimizer state: it has no tables and has not been
/// updated. ErrorCode::invalidArgument.
Status checkRestorable(const ParameterStore& store);
/// Checks values that a trainer restores at `offset` of plane `plane` of the shard, the values (0) or a slot
/// of the optimizer: ErrorCode::nonFinite or badSlice.
Status checkRestored(const ServedModel& model, uint32_t shard, size_t plane, uint64_t offset,
                     std::span<const float> values);

/// Names the tensor and element of the slice at `offset` of `shard` that holds NaN or infinity.
Error notFinite(const ServedModel& model, uint32_t shard, uint64_t offset, std::span<const float> values);
/// Names the tensors of `count` elements whose values the host cannot read.
Error notFinite(const ServedModel& model, uint32_t shard, uint64_t offset, uint64_t count);

/// Checks the values of a slice that lies at `offset` of `shard`: ErrorCode::nonFinite.
Status checkFinite(const ServedModel& model, uint32_t shard, uint64_t offset, std::span<const float> values);

/// Checks every value of a gradient in host memory, or every byte of an encoded one: ErrorCode::nonFinite or
/// badSlice.
Status checkGradient(const ServedModel& model, uint32_t shard, uint64_t offset, const Gradient& gradient);

/// Checks every value of a gradient of rows that passed checkRows(), or every byte of an encoded one:
/// ErrorCode::nonFinite or badSlice.
Status checkRowGradient(const ServedModel& model, uint32_t shard, uint64_t first, const RowIds& rows,
                        const Gradient& gradient);

/// The error `why` of a codec, with the tensors of the slice that it encodes or decodes.
Error inTensors(const ServedModel& model, uint32_t shard, uint64_t offset, uint64_t count, const Error& why);
/// The error of a call that names another codec than the one agreed on in join(); `agreed` may be null.
Error codecNotAgreed(std::string_view asked, const Codec* agreed);

/// Counts a refused slice by its reason, if it is one of those with a counter.
void countRefusal(DaemonMetrics& counters, const Error& error);

}  // namespace psd
