#pragma once

#include <cstdint>
#include <span>

#include "common/status/status.h"
#include "server/config/daemon_config.h"
#include "server/metrics/counters.h"
#include "server/policy/served_model.h"

namespace psd {

/// Checks a slice that a peer named against its shard, the grain and limits.slice_bytes; the error says
/// which and what would be right.
Status checkSlice(const ServedModel& model, const Limits& limits, uint32_t shard, uint64_t offset,
                  uint64_t count);
/// Checks a slice of a push, as that of a pull; the push says that the gradient's part for the shard has
/// `total` elements.
Status checkSlice(const ServedModel& model, const Limits& limits, uint32_t shard, uint64_t offset,
                  uint64_t count, uint64_t total);

/// Checks what a push says of a slice of rows against the row shard `shard` and limits.slice_bytes: `values`
/// of gradient, from row `first` on of `total`.
Status checkRows(const ServedModel& model, const Limits& limits, uint32_t shard, const RowIds& rows,
                 uint64_t values, uint64_t first, uint64_t total);
/// Checks rows that a peer asks for. An empty list of rows is none.
Status checkRows(const ServedModel& model, const Limits& limits, uint32_t shard, const RowIds& rows);

/// Says which tensor of the slice at `offset` of `shard` holds NaN or infinity, and at which element.
Error notFinite(const ServedModel& model, uint32_t shard, uint64_t offset, std::span<const float> values);
/// Names the tensors of `count` elements whose values the host cannot read.
Error notFinite(const ServedModel& model, uint32_t shard, uint64_t offset, uint64_t count);

/// Checks the values of a slice that lies at `offset` of `shard`: ErrorCode::nonFinite.
Status checkFinite(const ServedModel& model, uint32_t shard, uint64_t offset, std::span<const float> values);

/// Checks every value of a gradient in host memory, and every byte of what a codec made: ErrorCode::nonFinite
/// or badSlice.
Status checkGradient(const ServedModel& model, uint32_t shard, uint64_t offset, const Gradient& gradient);

/// Checks every value of a gradient of rows that checkRows() found right, and every byte of what a codec made
/// of it: ErrorCode::nonFinite or badSlice.
Status checkRowGradient(const ServedModel& model, uint32_t shard, uint64_t first, const RowIds& rows,
                        const Gradient& gradient);

/// For a call that names another codec than was agreed in join(); `agreed` may be null.
Error notAgreed(std::string_view asked, const Codec* agreed);

/// Counts a refused slice by its reason, where that reason is the peer's fault.
void countRefusal(DaemonMetrics& counters, const Error& error);

}  // namespace psd
